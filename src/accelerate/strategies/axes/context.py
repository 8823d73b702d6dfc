"""Context parallel: each rank of the axis computes a part of every sequence, and attention sees all of it.

`Accelerator.maybe_context_parallel` cuts the batch in place, and within it `scaled_dot_product_attention` works on
sequences that are spread over the axis. On accelerators torch's ring attention does it. It has no kernels for the CPU;
there `attention` fetches the keys and values of all ranks.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch

from accelerate.base.messages import message, warn_once
from accelerate.strategies.axes.attention import over_all
from accelerate.strategies.axes.base import Axis, Place

if TYPE_CHECKING:
    from accelerate.strategies.bundle import Bundle

#: The kind of attention that a layer of transformers may have.
FULL = "full_attention"


@final
class Context(Axis):
    """Sequences divided over ranks."""

    name = "cp"
    averages = True

    def __init__(self, place: Place) -> None:
        from torch.distributed.tensor.experimental._attention import set_rotate_method

        super().__init__(place)
        self.is_on_cpu = place.runtime.device.torch_device.type == "cpu"
        strategy = place.settings.cp_comm_strategy
        set_rotate_method(strategy)
        if self.is_on_cpu and strategy != "allgather":
            warn_once(f"cp_comm_strategy={strategy!r} has no effect on the CPU: keys and values are gathered there.")

    def check(self, bundle: Bundle) -> None:
        for model in bundle.models:
            kinds = set(getattr(getattr(model, "config", None), "layer_types", None) or ())
            if kinds - {FULL}:
                raise ValueError(
                    message(
                        given=f"a {type(model).__name__} with layers of {', '.join(sorted(kinds - {FULL}))}",
                        why="sequences are spread over ranks for attention to the whole of them only",
                        allowed=f"models whose layers are all {FULL}",
                        do="train this model with cp_size=1",
                    )
                )

    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Let attention of transformers models do without masks, which a part of a sequence can't have."""
        for name, module in model.named_modules():
            if name.rpartition(".")[2].endswith("self_attn"):
                takes = inspect.signature(module.forward).parameters
                says = "is_causal" in takes or any(each.kind is each.VAR_KEYWORD for each in takes.values())
                module.register_forward_pre_hook(partial(_without_mask, says=says), with_kwargs=True)
        return model

    def batch(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: Collection[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        refuse_lengths(buffers, dims, self.mesh.size())
        if self.is_on_cpu:
            return self._on_cpu(list(buffers), list(dims), kept)
        return self._divided(list(buffers), list(dims), kept)

    def _divided(
        self, buffers: list[torch.Tensor], dims: list[int], kept: Collection[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        from torch.distributed.tensor.experimental import context_parallel

        return context_parallel(self.mesh, buffers=buffers, buffer_seq_dims=dims, no_restore_buffers=set(kept))

    @contextmanager
    def _on_cpu(self, buffers: list[torch.Tensor], dims: list[int], kept: Collection[torch.Tensor]) -> Iterator[None]:
        positions = torch.arange(buffers[0].shape[dims[0]])
        whole = torch.nn.functional.scaled_dot_product_attention
        with self._divided([*buffers, positions], [*dims, 0], [*kept, positions]):
            torches = torch.nn.functional.scaled_dot_product_attention
            torch.nn.functional.scaled_dot_product_attention = over_all(whole, self.mesh, positions)
            try:
                yield
            finally:
                torch.nn.functional.scaled_dot_product_attention = torches


def _without_mask(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, says: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Take the mask out of a call of attention, which is causal by itself unless the module says otherwise."""
    if "attention_mask" in kwargs:
        kwargs["attention_mask"] = None
        if says:
            kwargs["is_causal"] = getattr(module, "is_causal", True)
    return args, kwargs


def refuse_lengths(buffers: Sequence[torch.Tensor], dims: Sequence[int], size: int) -> None:
    """Refuse buffers that can't be cut into `size` parts of one length.

    Raises:
        ValueError: there are none, or without a dim each, or their lengths differ, or leave a rest.
    """
    if not buffers or len(buffers) != len(dims):
        raise ValueError(
            message(
                given=f"{len(buffers)} buffers and {len(dims)} buffer_seq_dims",
                why="each tensor of a batch is cut along the dim of its sequence",
                allowed="at least one buffer, and as many dims",
                do="pass maybe_context_parallel(buffers=[inputs, labels], buffer_seq_dims=[1, 1])",
            )
        )
    lengths = [each.shape[dim] for each, dim in zip(buffers, dims, strict=True)]
    below = lengths[0] // size * size
    if len(set(lengths)) > 1 or lengths[0] % size:
        raise ValueError(
            message(
                given=f"sequences of {' and '.join(map(str, dict.fromkeys(lengths)))} for cp_size={size}",
                why="every rank has an equally long part of each sequence"
                if len(set(lengths)) == 1
                else "all buffers are cut at the same places",
                allowed=f"a length of {below or size} or {below + size}" if below else f"a length of {size}",
                do="pad or cut all of them alike before `maybe_context_parallel`",
            )
        )
