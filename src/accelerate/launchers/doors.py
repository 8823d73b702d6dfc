"""Single launchers for programs that have parsed a command line themselves: which one to use is the caller's choice.

`accelerate launch` chooses by the settings; these take the same settings, and one launcher.
"""

from __future__ import annotations

import argparse
from typing import Any

from accelerate.config.flags import explicit
from accelerate.launchers.base import Launcher
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.read import read_settings
from accelerate.launchers.registry import LAUNCHERS
from accelerate.launchers.settings import DECLARED, LaunchSettings


def settings_of(args: argparse.Namespace, **implied: Any) -> LaunchSettings:
    """Return the settings of a parsed command line on this machine.

    Args:
        args: what the parser of `accelerate launch` returns.
        implied: what is meant without having been written, by `dest`.
    """
    words = tuple(getattr(args, "training_script_args", None) or ())
    flags = {**explicit(args, *DECLARED), **implied}
    return read_settings(args.training_script, words, flags, getattr(args, "config_file", None))


def simple(args: argparse.Namespace) -> tuple[Launcher, LaunchSettings]:
    """Return what starts the script once, or as often as mpirun is told to."""
    settings = settings_of(args)
    return _launcher("mpirun" if settings.get("mpirun_hostfile") else "single"), settings


def multi_gpu(args: argparse.Namespace) -> tuple[Launcher, LaunchSettings]:
    """Return what starts the processes of this machine through torch."""
    return _launcher("torchrun"), settings_of(args)


def deepspeed(args: argparse.Namespace) -> tuple[Launcher, LaunchSettings]:
    """Return what starts a run with DeepSpeed: its own runner, or torch's."""
    settings = settings_of(args, use_deepspeed=True)
    return _launcher("deepspeed" if settings.deepspeed_runner else "torchrun"), settings


def tpu(args: argparse.Namespace) -> tuple[Launcher, LaunchSettings]:
    """Return what starts a process on each core of a TPU."""
    return _launcher("tpu"), settings_of(args, tpu=True)


def tpu_pod(args: argparse.Namespace) -> tuple[Launcher, LaunchSettings]:
    """Return what starts the run on every machine of a TPU pod."""
    return _launcher("tpu pod"), settings_of(args, tpu=True, tpu_use_cluster=True)


def plan(door: tuple[Launcher, LaunchSettings]) -> LaunchPlan:
    """Return what one of these would start."""
    launcher, settings = door
    return launcher.plan(settings)


def _launcher(name: str) -> Launcher:
    return LAUNCHERS.get(name)()
