"""Settings of sequence parallel: :class:`DeepSpeedSequenceParallelConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.base.messages import message, warn_once
from accelerate.config.env import fill
from accelerate.config.option import shared
from accelerate.config.parallelism_settings import ParallelismSettings


@dataclass
class DeepSpeedSequenceParallelConfig:
    """How sequences are divided by DeepSpeed's ALST, which exchanges attention heads for parts of the sequence.

    Args:
        sp_seq_length: the length of all sequences, where it is fixed. By default PARALLELISM_CONFIG_SP_SEQ_LENGTH.
        sp_seq_length_is_variable: the length may differ from batch to batch. By default
            PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE, or True.
        sp_attn_implementation: the attention of transformers that computes each part: "sdpa", "flash_attention_2",
            "flash_attention_3", "flex_attention" or the name of a kernel. By default
            PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION, or what the model was loaded with.

    Raises:
        ValueError: a fixed length that is not told, or "eager" attention.
    """

    sp_seq_length: int | None = shared(ParallelismSettings, "sp_seq_length", None)
    sp_seq_length_is_variable: bool = shared(ParallelismSettings, "sp_seq_length_is_variable", None)
    sp_attn_implementation: str | None = shared(ParallelismSettings, "sp_attn_implementation", None)

    def __post_init__(self) -> None:
        fill(self)
        if self.sp_attn_implementation is not None:
            refuse_eager(self.sp_attn_implementation)
        if not self.sp_seq_length_is_variable and self.sp_seq_length is None:
            raise ValueError(
                message(
                    given="sp_seq_length_is_variable=False without sp_seq_length",
                    why="a length that is the same in all batches has to be known before the first of them",
                    allowed="sp_seq_length with it, or sp_seq_length_is_variable=True",
                    do="pass sp_seq_length, the number of tokens of a whole sequence",
                )
            )
        if self.sp_seq_length_is_variable and self.sp_seq_length is not None:
            warn_once(
                f"sp_seq_length={self.sp_seq_length} has no effect: sp_seq_length_is_variable=True takes every length."
            )


def refuse_eager(implementation: str) -> None:
    """Refuse attention that can't do without a mask.

    Raises:
        ValueError: it is such an implementation.
    """
    if implementation in ("eager", "paged|eager"):
        raise ValueError(
            message(
                given=f"{implementation!r} attention for sequence parallel",
                why="without a mask, which is not divided with the sequences, it would look at tokens to come",
                allowed="'sdpa', 'flash_attention_2', 'flash_attention_3', 'flex_attention', or the name of a kernel",
                do="load the model with attn_implementation='sdpa'",
            )
        )
