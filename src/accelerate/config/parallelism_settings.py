"""What a config file, flags and variables can say about a mesh: :class:`ParallelismSettings`, a field a setting.

`ParallelismConfig` and the settings of single axes share these declarations, so that each is written once.
"""
# ruff: noqa: RUF009  (setting() returns a dataclasses.field)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accelerate.config.enums import DistributedType, value_of
from accelerate.config.option import Boolean, Choice, Integer, Kind, Text, option
from accelerate.config.schedules import SCHEDULES, SPELLINGS

GROUP = "ParallelismConfig Arguments"


def _several(answers: Mapping[str, Any]) -> bool:
    """Whether the answers so far ask for processes that torch starts."""
    kind = value_of(answers.get("distributed_type", "NO"))
    return kind == DistributedType.FSDP.value or str(kind).startswith("MULTI_")


def _axes(answers: Mapping[str, Any]) -> bool:
    """Whether the answers so far ask for processes that share models."""
    return bool(answers.get("has_axes"))


def _pipeline(answers: Mapping[str, Any]) -> bool:
    """Whether the answers so far ask for a pipeline."""
    return _axes(answers) and answers.get("parallelism_config_pp_size", 1) > 1


def setting(name: str, kind: Kind, help: str, fallback: Any = None, **question: Any) -> Any:
    """Return a field whose flag, key and variable are made of `name`, with a question if it is asked for."""
    return option(
        None,
        fallback=fallback,
        kind=kind,
        flag=f"--parallelism_config_{name}",
        yaml=f"parallelism_config.parallelism_config_{name}",
        env=f"PARALLELISM_CONFIG_{name.upper()}",
        group=GROUP,
        help=help,
        **question,
    )


class Plan(Kind):
    """Patterns of module names with a style for each: a mapping, or text with commas and equals signs."""

    def parse(self, value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            value = dict(self._pair(part) for part in value.split(",") if part.strip())
        if not isinstance(value, Mapping):
            raise ValueError(f"it is a {type(value).__name__}, not a plan")
        return {str(pattern): style for pattern, style in value.items()}

    def _pair(self, text: str) -> tuple[str, str]:
        pattern, equals, style = text.partition("=")
        if not equals:
            raise ValueError(f"{text.strip()!r} has no style")
        return pattern.strip(), style.strip()

    @property
    def allowed(self) -> str:
        return "patterns with a style for each: layers.*.q_proj=colwise,layers.*.o_proj=rowwise"

    def format(self, value: Any) -> str:
        return ",".join(f"{pattern}={style}" for pattern, style in value.items())


class SplitPoints(Kind):
    """Names of modules with commas between them, or a list of them; "auto" for stages of even size."""

    def parse(self, value: Any) -> str | list[str]:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"it is a {type(value).__name__}, not names of modules")
        return "auto" if list(value) == ["auto"] else [str(each) for each in value]

    @property
    def allowed(self) -> str:
        return "auto, or names of modules: layers.8,layers.16"

    def format(self, value: Any) -> str:
        return value if isinstance(value, str) else ",".join(value)


@dataclass
class ParallelismSettings:
    """Everything that the section `parallelism_config` of a config file can hold, and whether to ask for it."""

    has_axes: bool = option(
        False,
        kind=Boolean(),
        help="Processes can divide layers, sequences, or the sequence of layers, instead of having a whole model each.",
        ask="Should processes share models in one of these ways?",
        when=_several,
    )
    dp_replicate_size: int = setting(
        "dp_replicate_size",
        Integer(1),
        "How many replicas there are.",
        1,
        ask="How many replicas of the model should there be?",
        when=_axes,
    )
    dp_shard_size: int = setting(
        "dp_shard_size",
        Integer(1),
        "Over how many processes a replica is sharded.",
        1,
        ask="Over how many processes should each replica be sharded?",
        when=lambda answers: _axes(answers) and value_of(answers["distributed_type"]) == DistributedType.FSDP.value,
    )
    tp_size: int = setting(
        "tp_size",
        Integer(1),
        "Over how many processes layers are divided.",
        1,
        ask="Over how many processes should layers be divided (tensor parallel)?",
        when=_axes,
    )
    cp_size: int = setting(
        "cp_size",
        Integer(1),
        "Over how many processes sequences are divided.",
        1,
        ask="Over how many processes should sequences be divided (context parallel)?",
        when=_axes,
    )
    cp_backend: str = setting("cp_backend", Choice(("torch",)), "What divides sequences for context parallel.", "torch")
    cp_comm_strategy: str = setting(
        "cp_comm_strategy", Choice(("allgather", "alltoall")), "How context parallel ranks exchange.", "allgather"
    )
    sp_size: int = setting("sp_size", Integer(1), "Over how many processes sequence parallel divides sequences.", 1)
    sp_backend: str = setting(
        "sp_backend", Choice(("deepspeed",)), "What divides sequences for sequence parallel.", "deepspeed"
    )
    sp_seq_length: int | None = setting("sp_seq_length", Integer(1), "The length of sequences, where it is fixed.")
    sp_seq_length_is_variable: bool = setting(
        "sp_seq_length_is_variable", Boolean(switch=False), "Whether the length of sequences varies.", True
    )
    sp_attn_implementation: str | None = setting(
        "sp_attn_implementation", Text(), "The attention that sequence parallel uses; by default the model's own."
    )
    tp_plan: dict[str, Any] | None = setting(
        "tp_plan", Plan(), "Which layers are divided, and how; by default as the model says."
    )
    pp_size: int = setting(
        "pp_size",
        Integer(1),
        "Over how many processes the sequence of layers is divided.",
        1,
        ask="Over how many processes should the sequence of layers be divided (pipeline parallel)?",
        when=_axes,
    )
    pp_schedule: str = setting(
        "pp_schedule",
        Choice(tuple(SCHEDULES), meanings=SPELLINGS),
        "In which order the stages of a pipeline work.",
        "1f1b",
        ask="In which order should the stages of the pipeline work?",
        when=_pipeline,
    )
    pp_num_microbatches: int | None = setting(
        "pp_num_microbatches",
        Integer(1),
        "In how many pieces a pipeline cuts a batch; by default one for each stage.",
        ask="In how many pieces should the pipeline cut a batch? (Empty: one for each stage.)",
        when=_pipeline,
    )
    pp_split_points: str | list[str] = setting(
        "pp_split_points", SplitPoints(), "The modules that stages but the first begin with, or auto.", "auto"
    )
    pp_stages_per_process: int | None = setting(
        "pp_stages_per_process", Integer(1), "How many stages of a pipeline each process has."
    )
