"""The one precedence table: an argument wins over the environment, the environment over the default.

`launch` stands before it: a flag wins over the config file, and what neither gives stays unset, so that the default is
the same whichever way a program is started (see :func:`merge`). Nothing else decides which of two values counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from accelerate.base.environ import current
from accelerate.config.option import Boolean, Choice, Integer, Option, option, option_of


class Found(NamedTuple):
    """A value and the door it came through: "argument", "environment", "default", "flag" or "file"."""

    value: Any
    source: str


def find(declared: Option, argument: Any = None, environ: Mapping[str, str] | None = None) -> Found:
    """Return the value of one setting and where it came from.

    Args:
        declared: the setting.
        argument: what the program passed; None means that it passed nothing.
        environ: the variables to look in; the process's own by default.

    Raises:
        ValueError: the winning value isn't allowed.
    """
    if argument is not None:
        return Found(declared.read(argument, f"argument {declared.name or declared.dest}"), "argument")
    variables = current() if environ is None else environ
    if declared.env and declared.env in variables:
        return Found(declared.read(variables[declared.env], f"environment variable {declared.env}"), "environment")
    return Found(declared.default, "default")


def resolve(declared: Option, argument: Any = None, environ: Mapping[str, str] | None = None) -> Any:
    """Return the value of one setting: argument, then environment, then default."""
    return find(declared, argument, environ).value


def merge(flags: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Found]:
    """Return what a launch was told, by `dest`: flags before the config file, nothing for what neither says."""
    found = {dest: Found(value, "file") for dest, value in file.items() if value is not None}
    found.update({dest: Found(value, "flag") for dest, value in flags.items() if value is not None})
    return found


@dataclass(frozen=True)
class Settings:
    """What an `Accelerator` needs to know before it can choose device, strategy and precision."""

    use_cpu: bool = option(
        False,
        kind=Boolean(),
        flag="--cpu",
        yaml="use_cpu",
        env="ACCELERATE_USE_CPU",
        group="Hardware Selection Arguments",
        help="Run on the CPU, whatever accelerators the machine has.",
        ask="Do you want to run on CPU only, even if an accelerator is there?",
    )
    mixed_precision: str = option(
        "no",
        kind=Choice(("no", "fp16", "bf16", "fp8")),
        flag="--mixed_precision",
        yaml="mixed_precision",
        env="ACCELERATE_MIXED_PRECISION",
        group="Resource Selection Arguments",
        help="Compute in this number format where that is safe, and in fp32 elsewhere.",
        ask="Which mixed precision do you want to use?",
    )
    debug: bool = option(
        False,
        kind=Boolean(),
        flag="--debug",
        yaml="debug",
        env="ACCELERATE_DEBUG_MODE",
        group="Hardware Selection Arguments",
        help="Check shapes and devices before every collective operation, and name the call that differs.",
        ask="Should collective operations be checked while running (slow, for debugging)?",
    )
    enable_cpu_affinity: bool = option(
        False,
        kind=Boolean(),
        flag="--enable_cpu_affinity",
        yaml="enable_cpu_affinity",
        env="ACCELERATE_CPU_AFFINITY",
        group="Resource Selection Arguments",
        help="Pin each process to the CPU cores next to its accelerator.",
        ask="Do you want each process pinned to the CPU cores next to its accelerator?",
    )
    gradient_accumulation_steps: int = option(
        1,
        kind=Integer(1),
        flag="--gradient_accumulation_steps",
        yaml="deepspeed_config.gradient_accumulation_steps",
        env="ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        group="Training Paradigm Arguments",
        help="Update the weights once in this many batches.",
    )
    blocking_save: bool = option(
        True,
        kind=Boolean(switch=False),
        flag="--blocking_save",
        yaml="blocking_save",
        env="ACCELERATE_BLOCKING_SAVE",
        group="Training Paradigm Arguments",
        help="Let save_state return when the checkpoint is on disk; false writes it while training goes on.",
    )


def setting(name: str, argument: Any = None) -> Any:
    """Return the value of one field of `Settings`: argument, then environment, then default."""
    return resolve(option_of(Settings, name), argument)
