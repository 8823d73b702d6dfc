"""Makes the plan of a command line for a machine that is described, not this one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from accelerate.commands.launch import launch_command_parser
from accelerate.config.cluster import ClusterConfig, is_local
from accelerate.config.flags import explicit
from accelerate.config.sagemaker import SageMakerConfig
from accelerate.launchers.checks import check
from accelerate.launchers.hardware import Hardware
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.registry import select
from accelerate.launchers.settings import DECLARED, LaunchSettings
from accelerate.launchers.slurm import fill_in

CPU = Hardware()
ONE_GPU = Hardware("cuda", 1)
FOUR_GPUS = Hardware("cuda", 4)
SCRIPT = str(Path(__file__))  # any file that exists


def config_of(content: Mapping[str, Any]) -> ClusterConfig | SageMakerConfig:
    """Return what a config file says, of one's own machines or of jobs on SageMaker."""
    schema = ClusterConfig if is_local(content) else SageMakerConfig
    return schema.from_dict(content, "c.yaml")


def settings_of(
    line: str, config: str = "", hardware: Hardware = CPU, environ: Mapping[str, str] | None = None
) -> LaunchSettings:
    """Return the settings for a command line and the text of a config file; `SCRIPT` in the line is a script."""
    args = launch_command_parser().parse_args(line.replace("SCRIPT", SCRIPT).split())
    settings = LaunchSettings.of(
        args.training_script,
        tuple(args.training_script_args),
        explicit(args, *DECLARED),
        config_of(yaml.safe_load(config)) if config else None,
        hardware=hardware,
        environ=environ or {},
        file="c.yaml" if config else None,
        cores=8,
    )
    return dataclasses.replace(settings, found=fill_in(settings.found, settings.environ))


def plan_of(
    line: str, config: str = "", hardware: Hardware = CPU, environ: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Return the plan for a command line, checked as a launch is."""
    settings = settings_of(line, config, hardware, environ)
    launcher = select(settings)
    check(settings)
    return launcher.plan(settings)
