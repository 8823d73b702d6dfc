"""`accelerate config default`: a config file for this machine, without a question."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from accelerate.commands.config.config_args import default_config_file

DESCRIPTION = "Write a config file for the hardware of this machine, without asking."
PRECISIONS = ("no", "fp16", "bf16", "fp8")


def write_basic_config(mixed_precision: str = "no", save_location: str = default_config_file) -> Path | bool:
    """Write a config file for the hardware of this machine; one that exists already stays as it is.

    Args:
        mixed_precision: the precision to train in.
        save_location: the file to write, JSON if it ends in `.json` and YAML otherwise.

    Returns:
        The path, or False if there is a file already.

    Raises:
        ValueError: there is no such precision.
    """
    from accelerate.base.environ import current
    from accelerate.config.cluster import ClusterConfig
    from accelerate.config.enums import ComputeEnvironment, DistributedType
    from accelerate.config.files import write_config
    from accelerate.launchers.hardware import find_hardware

    path = Path(save_location)
    if path.exists():
        print(f"Left {path} as it is; `accelerate config` replaces it, --config_file names another file")
        return False
    hardware = find_hardware(current())
    processes = max(hardware.count, 1)
    config = ClusterConfig(
        compute_environment=ComputeEnvironment.LOCAL_MACHINE,
        distributed_type=DistributedType(hardware.spec.label if processes > 1 else "NO"),
        mixed_precision=mixed_precision.lower(),
        use_cpu=hardware.is_cpu,
        debug=False,
        num_processes=processes,
    )
    return write_config(path, config.to_dict())


def default_command_parser(parser: Any, parents: list[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Return the parser of `accelerate config default`, added to the subparsers `parser`."""
    added = parser.add_parser("default", parents=parents, help=DESCRIPTION, description=DESCRIPTION)
    added.add_argument("--config_file", default=default_config_file, dest="save_location", help="The file to write.")
    added.add_argument("--mixed_precision", choices=PRECISIONS, default="no", help="The precision to train in.")
    added.set_defaults(func=default_config_command)
    return added


def default_config_command(args: argparse.Namespace) -> None:
    """Write the file, and say where."""
    path = write_basic_config(args.mixed_precision, args.save_location)
    if path:
        print(f"Wrote the configuration to {path}")
