"""What `torch.compile` is asked to do with a prepared model."""
# ruff: noqa: RUF009  (option() returns a dataclasses.field)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accelerate.config.enums import DynamoBackend
from accelerate.config.env import fill
from accelerate.config.kwargs import KwargsHandler
from accelerate.config.option import Boolean, Choice, option

GROUP = "Resource Selection Arguments"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")
# The flag of earlier releases had this misspelling, and config files carry it on.
MISSPELT = {"torhchxla_trace_once": "torchxla_trace_once"}


def _compiles(answers: Any) -> bool:
    """Whether the answers so far ask for compilation."""
    return answers.get("dynamo_backend", DynamoBackend.NO) != DynamoBackend.NO


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """The settings of `torch.compile`; what is None comes from ACCELERATE_DYNAMO_*, then from the default.

    Args:
        backend: compiler backend; NO leaves models as they are.
        mode: trade-off between compile time, memory and speed.
        fullgraph: raise where the model can't be captured as one graph.
        dynamic: True for dynamic shapes, False for static ones, None to let torch find out.
        options: passed to the backend.
        disable: turn `torch.compile` into a no-op, for testing.
        use_regional_compilation: compile each repeated block once, rather than the whole model.
    """

    backend: DynamoBackend = option(
        None,
        fallback=DynamoBackend.NO,
        kind=Choice.of(DynamoBackend, lower=True, meanings=MISSPELT),
        flag="--dynamo_backend",
        yaml="dynamo_config.dynamo_backend",
        env="ACCELERATE_DYNAMO_BACKEND",
        group=GROUP,
        help="Compile the model with this backend of `torch.compile`.",
        ask="Which `torch.compile` backend do you want to use?",
    )
    mode: str = option(
        None,
        fallback="default",
        kind=Choice(MODES),
        flag="--dynamo_mode",
        yaml="dynamo_config.dynamo_mode",
        env="ACCELERATE_DYNAMO_MODE",
        group=GROUP,
        help="Trade compile time and memory for speed.",
        ask="Which `torch.compile` mode do you want to use?",
        when=_compiles,
    )
    fullgraph: bool = option(
        None,
        fallback=False,
        kind=Boolean(),
        flag="--dynamo_use_fullgraph",
        yaml="dynamo_config.dynamo_use_fullgraph",
        env="ACCELERATE_DYNAMO_USE_FULLGRAPH",
        group=GROUP,
        help="Raise an error where the model can't be captured as a single graph.",
        ask="Must the model be captured as a single graph?",
        when=_compiles,
    )
    dynamic: bool | None = option(
        None,
        kind=Boolean(),
        flag="--dynamo_use_dynamic",
        yaml="dynamo_config.dynamo_use_dynamic",
        env="ACCELERATE_DYNAMO_USE_DYNAMIC",
        group=GROUP,
        help="Compile for shapes that change; without it torch finds out by itself.",
        ask="Do you want to compile for shapes that change?",
        when=_compiles,
    )
    options: Any = None
    disable: bool = False
    use_regional_compilation: bool = option(
        None,
        fallback=False,
        kind=Boolean(),
        flag="--dynamo_use_regional_compilation",
        yaml="dynamo_config.dynamo_use_regional_compilation",
        env="ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
        group=GROUP,
        help="Compile each repeated block once rather than the whole model: a much shorter wait.",
        ask="Do you want to compile repeated blocks only, for a shorter compile time?",
        when=_compiles,
    )

    def __post_init__(self) -> None:
        fill(self)

    def to_dict(self) -> dict[str, Any]:
        """Return every field, the backend as `torch.compile` spells it."""
        return {**super().to_dict(), "backend": self.backend.value.lower()}

    def to_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments of `torch.compile` that differ from their defaults."""
        kwargs = super().to_kwargs()
        kwargs.pop("use_regional_compilation", None)
        return kwargs
