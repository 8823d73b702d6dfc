"""`accelerate env`: the facts that a bug report needs. torch is imported only where there is an accelerator to name."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from accelerate.commands.utils import CustomArgumentParser, run_command

DESCRIPTION = "Print the versions and the hardware that a bug report needs, and the config file."
CONFIG = "`Accelerate` configs"
GIGABYTE = 1024**3


def env_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of `accelerate env`, added to `subparsers` if they are given."""
    if subparsers is not None:
        parser = subparsers.add_parser("env", help=DESCRIPTION, description=DESCRIPTION)
        parser.set_defaults(func=env_command)
    else:
        parser = CustomArgumentParser("accelerate env", description=DESCRIPTION)
    parser.add_argument(
        "--config_file", default=None, help="The config file; by default the one of `accelerate config`."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    return parser


def env_command(args: argparse.Namespace) -> dict[str, Any]:
    """Print the facts, and return them by name; the content of the config file is the last."""
    facts = collect(getattr(args, "config_file", None))
    if getattr(args, "json", False):
        print(json.dumps(facts, indent=2))
        return facts
    print("\nFacts for a bug report:\n")
    for name, value in facts.items():
        if name != CONFIG:
            print(f"- {name}: {value}")
    print(f"- `Accelerate` {'default ' if args.config_file is None else ''}config:")
    config = facts[CONFIG]
    lines = [f"- {key}: {value}" for key, value in config.items()] if isinstance(config, dict) else [config]
    print("\n".join(f"\t{line}" for line in lines))
    return facts


def collect(config_file: str | None = None) -> dict[str, Any]:
    """Return the facts by name."""
    import platform
    import shutil

    import psutil

    import accelerate

    return {
        "`Accelerate` version": accelerate.__version__,
        "Platform": platform.platform(),
        "`accelerate` bash location": shutil.which("accelerate") or "Not found",
        "Python version": platform.python_version(),
        "Numpy version": _version("numpy"),
        "PyTorch version": _version("torch"),
        **_accelerator(),
        "System RAM": f"{psutil.virtual_memory().total / GIGABYTE:.2f} GB",
        CONFIG: _config(config_file),
    }


def _version(distribution: str) -> str:
    """Return the version of an installed package without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "Not found"


def _accelerator() -> dict[str, str]:
    """Return the kind of accelerators that there are, their number, and the name of the first."""
    from accelerate.base.environ import current
    from accelerate.launchers.hardware import find_hardware

    hardware = find_hardware(current())
    if hardware.is_cpu:
        return {"PyTorch accelerator": "N/A"}
    import torch

    module = torch.get_device_module(hardware.kind)
    name = module.get_device_name(0) if hasattr(module, "get_device_name") else hardware.spec.title
    return {"PyTorch accelerator": hardware.kind.upper(), "Devices": f"{hardware.count} x {name}"}


def _config(config_file: str | None) -> dict[str, Any] | str:
    """Return the content of the config file, or why there is none."""
    from accelerate.config.files import default_config_path

    if config_file is None and not default_config_path().is_file():
        return "Not found"
    from accelerate.config.load import load_config

    return load_config(config_file).to_dict()


def main() -> None:
    """Run `accelerate env` as a program of its own."""
    run_command(env_command, env_command_parser().parse_args(sys.argv[1:]))


if __name__ == "__main__":
    main()
