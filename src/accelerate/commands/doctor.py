"""`accelerate doctor`: checks what makes runs fail before they start, with the flags of the launch that is planned."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from accelerate.commands.utils import CustomArgumentParser, run_command
from accelerate.config.flags import add_options, explicit
from accelerate.launchers.settings import DECLARED, LaunchSettings

DESCRIPTION = "Check what makes runs fail before they start."
EPILOG = (
    "It takes the flags of `accelerate launch`, and checks whether that launch would work. For several machines, run "
    "it on all of them at the same time. The exit code is 1 if a check failed."
)


def doctor_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of `accelerate doctor`, added to `subparsers` if given."""
    facts = {
        "description": DESCRIPTION,
        "epilog": EPILOG,
        "usage": "accelerate doctor [--json] [--folder FOLDER] [options of launch]",
    }
    if subparsers is not None:
        parser = subparsers.add_parser("doctor", help=DESCRIPTION, **facts)
        parser.set_defaults(func=doctor_command)
    else:
        parser = CustomArgumentParser("accelerate doctor", **facts)
    parser.add_argument(
        "--config_file", default=None, help="The config file; by default the one of `accelerate config`."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parser.add_argument("--folder", default=".", help="Where checkpoints would be written; by default here.")
    parser.add_argument("--only", action="append", metavar="CHECK", help="Make this check; may be given several times.")
    parser.add_argument("--skip", action="append", metavar="CHECK", help="Leave this check out; as often as you like.")
    parser.add_argument("--patience", type=float, default=30.0, help="Seconds to wait for other machines.")
    add_options(parser, *DECLARED)
    return parser


def doctor_command(args: argparse.Namespace) -> None:
    """Make the checks and print a line for each finding.

    A config file that can't be read is a finding too.

    Raises:
        ValueError: there is no check of a given name.
        SystemExit: with code 1, a check failed.
    """
    from accelerate.doctor.finding import Finding, Status, Visit

    settings, unread = _settings(args)
    visit = Visit(settings, Path(args.folder), args.patience, unread)
    findings: list[tuple[str, Finding]] = []
    for name, check in _chosen(args.only, args.skip).items():
        for finding in check(visit):
            findings.append((name, finding))
            if not args.json:
                _print(name, finding)
    if args.json:
        print(json.dumps([{"check": name, **vars(one)} for name, one in findings], indent=2))
    counts = {status: sum(one.status is status for _, one in findings) for status in Status}
    if not args.json:
        print(f"{counts[Status.OK]} ok, {counts[Status.WARNING]} warnings, {counts[Status.FAILURE]} failures")
    if counts[Status.FAILURE]:
        sys.exit(1)


def _settings(args: argparse.Namespace) -> tuple[LaunchSettings, Exception | None]:
    """Return the settings of the launch, and why the config file can't be read; then they are those of the flags."""
    from accelerate.base.environ import current
    from accelerate.launchers.hardware import find_hardware
    from accelerate.launchers.read import read_settings

    flags = explicit(args, *DECLARED)
    try:
        return read_settings(__file__, (), flags, args.config_file), None
    except (ValueError, FileNotFoundError) as error:
        environ = dict(current())
        return LaunchSettings.of(__file__, (), flags, None, hardware=find_hardware(environ), environ=environ), error


def _chosen(only: list[str] | None, skip: list[str] | None) -> dict[str, Any]:
    """Return the checks to make, by name."""
    from accelerate.base.messages import did_you_mean, message
    from accelerate.doctor.checks import CHECKS

    for name in [*(only or ()), *(skip or ())]:
        if name not in CHECKS:
            raise ValueError(
                message(
                    given=f"a check called {name!r}",
                    why="there is none",
                    allowed=", ".join(CHECKS),
                    do=did_you_mean(name, CHECKS),
                )
            )
    return {name: check for name, check in CHECKS.items() if name in (only or CHECKS) and name not in (skip or ())}


def _print(name: str, finding: Any) -> None:
    """Print a finding, and on a second line what to do about it."""
    print(f"{finding.status.value:8} {name}: {finding.text}", flush=True)
    if finding.do:
        print(f"{'':8} -> {finding.do}", flush=True)


def main() -> None:
    """Run `accelerate doctor` as a program of its own."""
    run_command(doctor_command, doctor_command_parser().parse_args())


if __name__ == "__main__":
    main()
