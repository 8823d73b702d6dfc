"""Attention over sequences that are spread over ranks, in plain tensors: for devices without torch's ring attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import _functional_collectives as functional

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# their first names warn since torch 2.13
_all_gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
_all_gather_with_gradients = (
    getattr(functional, "all_gather_single_autograd", None) or functional.all_gather_tensor_autograd
)


def over_all(attention: Callable[..., torch.Tensor], mesh: DeviceMesh, positions: torch.Tensor) -> Callable[..., Any]:
    """Return `scaled_dot_product_attention` from this rank's queries to the keys and values of all ranks.

    Args:
        attention: the one that computes it.
        mesh: the ranks.
        positions: which tokens of the sequence this rank has [length / ranks], int64.
    """
    everywhere = _all_gather(positions, 0, mesh)
    sees = positions[:, None] >= everywhere[None, :]

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        key, value = (_all_gather_with_gradients(each.contiguous(), each.ndim - 2, mesh) for each in (key, value))
        mask = sees if is_causal else attn_mask
        return attention(query, key, value, attn_mask=mask, dropout_p=dropout_p, **kwargs)

    return attend
