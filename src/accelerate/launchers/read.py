"""From what a person gave to complete settings: the config file is read, and the machine looked at."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from accelerate.config.cluster import ClusterConfig
from accelerate.config.files import default_config_path
from accelerate.config.sagemaker import SageMakerConfig
from accelerate.devices.specs import SPECS
from accelerate.launchers.hardware import find_hardware
from accelerate.launchers.settings import LaunchSettings
from accelerate.launchers.slurm import fill_in


def read_settings(
    script: str, arguments: tuple[str, ...], flags: Mapping[str, Any], config_file: str | None = None
) -> LaunchSettings:
    """Return the settings of a launch on this machine.

    Args:
        script: what to run.
        arguments: what it is passed.
        flags: what was given on the command line, by `dest`.
        config_file: the config file; the default one if there is one, unless `flags` ask for the CPU.

    Raises:
        FileNotFoundError: there is no such config file.
        ValueError: it can't be read.
    """
    path = config_file or default_file(flags)
    environ = dict(os.environ)
    settings = LaunchSettings.of(script, arguments, flags, file_config(path), environ=environ, file=path)
    if settings.job is not None:
        return settings
    settings = dataclasses.replace(settings, found=fill_in(settings.found, environ))
    if settings.cpu_is_chosen:
        return settings
    if settings.chosen_ids is not None:
        environ = {**environ, **{spec.visible: settings.chosen_ids for spec in SPECS if spec.visible}}
    return dataclasses.replace(settings, hardware=find_hardware(environ))


def default_file(flags: Mapping[str, Any]) -> str | None:
    """Return the default config file, if there is one; with --cpu it doesn't count, being about accelerators."""
    path = default_config_path()
    return str(path) if path.is_file() and not flags.get("cpu") else None


def file_config(path: str | None) -> ClusterConfig | SageMakerConfig | None:
    """Return the content of a config file; None without a file."""
    if path is None:
        return None
    from accelerate.config.load import load_config

    return load_config(path)


def cluster_config(path: str | None) -> ClusterConfig | None:
    """Return the content of a config file if that is about one's own machines."""
    config = file_config(path)
    return config if isinstance(config, ClusterConfig) else None
