"""DeepSpeed's side of sequence parallel: attention that exchanges heads for parts of the sequence, and its groups.

`UlyssesSPAttentionHF` gives each rank all tokens of some heads, calls the attention of transformers, and gives the
tokens back. DeepSpeed puts it into the table of attentions for every model of the process and for batches of one size;
:class:`DividedAttention` stands there for the models that were prepared, and has one of DeepSpeed's for each shape, so
that other models, and sequences that are not divided, are computed as always.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelerate.base.constants import BETA_SP_AVAILABLE_DEEPSPEED_VERSION
from accelerate.base.messages import message
from accelerate.base.packages import is_deepspeed_available
from accelerate.base.versions import compare_versions, installed
from accelerate.data_loader.iteration import Pass
from accelerate.data_loader.turns import TurnPass

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from accelerate.state.gradient import GradientState


def start_deepspeed(group: ProcessGroup) -> None:
    """Let DeepSpeed talk through torch's process groups, and know the group that divides sequences.

    Raises:
        ImportError: DeepSpeed is missing or too old.
    """
    refuse_missing()
    import deepspeed.comm as comm
    from deepspeed.utils import groups

    if not comm.is_initialized():
        comm.init_distributed(dist_backend=torch.distributed.get_backend(), auto_mpi_discovery=False, verbose=False)
    if groups.mpu is None or isinstance(groups.mpu, Groups):
        groups.mpu = Groups(group)  # where transformers' Trainer looks for it


def refuse_missing() -> None:
    """Refuse a DeepSpeed that isn't there, or has no sequence parallel for transformers.

    Raises:
        ImportError: so it is.
    """
    least = BETA_SP_AVAILABLE_DEEPSPEED_VERSION
    if not is_deepspeed_available():
        found = "DeepSpeed, whose attention and data loader divide the sequences, is not installed"
    elif compare_versions("deepspeed", "<", least):
        found = f"DeepSpeed {installed('deepspeed')} doesn't divide sequences of transformers' models as later ones do"
    else:
        return
    raise ImportError(
        message(
            given="sp_size greater than 1 (sp_backend='deepspeed')",
            why=found,
            allowed=f"deepspeed {least} or later; context parallel (cp_size) needs torch alone",
            do=f"pip install 'deepspeed>={least}' (DS_BUILD_OPS=0 installs it without building kernels)",
        )
    )


class Groups:
    """What DeepSpeed and transformers ask about the group that divides sequences, by DeepSpeed's names."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group

    def get_sequence_parallel_group(self) -> ProcessGroup:
        """Return the ranks that have parts of the same sequences as this one."""
        return self.group

    def get_sequence_parallel_world_size(self) -> int:
        """Return how many they are."""
        return self.group.size()

    def get_sequence_parallel_rank(self) -> int:
        """Return which part is this rank's."""
        return self.group.rank()


class DividedAttention:
    """An attention function of transformers that sees whole sequences where each rank has a part of them.

    Args:
        name: its name among transformers' attention functions.
        whole: that function.
        group: the ranks that have the parts.
        gradient_state: knows which loaders are being iterated.
        length: the length of all sequences; None where it varies.

    `members` are the attention modules of prepared models.
    """

    def __init__(
        self,
        name: str,
        whole: Callable[..., Any],
        group: ProcessGroup,
        gradient_state: GradientState,
        length: int | None = None,
    ) -> None:
        self.name, self.whole = name, whole
        self.group, self.length = group, length
        self.members: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._state = gradient_state
        self._shapes: dict[tuple[int, ...], Any] = {}
        self._decided: tuple[int, bool] = (-1, False)
        self._is_divided = False

    def __call__(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kw: Any
    ) -> Any:
        """Compute attention; the arguments are those of transformers, tensors [batch, heads, sequence, head size]."""
        if module not in self.members or not self.is_divided(module.training):
            return self.whole(module, query, key, value, mask, **kw)
        self._refuse_window(kw.get("sliding_window"), query.shape[2] * self.group.size())
        groups = getattr(module, "num_key_value_groups", None)
        try:
            # A mask is one of this rank's part alone. That of flex attention is made anew for all parts.
            return self._for(query, key)(
                module, query, key, value, None if isinstance(mask, torch.Tensor) else mask, **kw
            )
        finally:
            if groups is not None:  # where heads are repeated, DeepSpeed writes their new number here
                module.num_key_value_groups = groups

    def _for(self, query: torch.Tensor, key: torch.Tensor) -> Any:
        """Return DeepSpeed's attention for tensors of these shapes."""
        rows, heads, _, size = query.shape
        shape = rows, heads, key.shape[1], size
        found = self._shapes.get(shape)
        if found is None:
            found = self._shapes[shape] = self._made_for(*shape)
        return found

    @torch.compiler.disable  # DeepSpeed writes the group down here, where compiled code finds it
    def _made_for(self, rows: int, heads: int, key_heads: int, size: int) -> Any:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        attention = UlyssesSPAttentionHF(
            attn=self.whole,
            batch_size=rows,
            attn_head_count=heads,
            attn_head_size=size,
            kv_head_count=key_heads,
            num_hidden_layers=1,
            process_group=self.group,
            seq_length_is_variable=self.length is None,
            local_seq_length=None if self.length is None else self.length // self.group.size(),
            global_seq_length=self.length,
        )
        attention.core_attn_implementation = self.name
        return attention

    @torch.compiler.disable
    def is_divided(self, training: bool) -> bool:
        """Return whether what a model is given now is part of a sequence; decided once for each batch.

        While training it is, whatever the loop reads besides. A model that is evaluated goes by the loader that yielded
        last, which may be one of whole sequences.

        Raises:
            RuntimeError: a model is trained on batches of a loader that doesn't divide them.
        """
        at = self._state.turn, training
        if at != self._decided:
            active, running = self._state.active, self._state.running
            by_turns = any(isinstance(each, TurnPass) for each in running)
            if training and not by_turns and isinstance(active, Pass):
                raise RuntimeError(_not_divided())
            self._is_divided = training or isinstance(active, TurnPass)
            self._decided = at
        return self._is_divided

    def _refuse_window(self, window: int | None, length: int) -> None:
        if window is not None and length > window and "flash" not in self.name:
            raise ValueError(
                message(
                    given=f"sequences of {length} tokens, and a layer that sees {window} of them (sliding_window)",
                    why=f"{self.name!r} says this with a mask, which divided sequences don't have",
                    allowed=f"sequences of at most {window} tokens, or flash attention, which is told the window",
                    do="load the model with attn_implementation='flash_attention_2'",
                )
            )


def _not_divided() -> str:
    return message(
        given="a model that is trained on batches of a loader which doesn't divide their sequences",
        why="with sp_size greater than 1, the ranks of a group compute parts of the same sequences",
        allowed="a loader prepared in the same call as the model, or one of accelerator.deepspeed_ulysses_dl_adapter",
        do="iterate over accelerator.deepspeed_ulysses_dl_adapter(loader, model)",
    )
