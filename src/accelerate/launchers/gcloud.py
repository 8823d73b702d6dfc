"""Commands on the machines of a TPU, through the command line of Google Cloud."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from accelerate.base.messages import message


def ssh(name: str, zone: str | None, command: str, *, alpha: bool = False) -> list[str]:
    """Return the call that runs a shell's command on every machine of a TPU.

    Args:
        name: of the TPU.
        zone: where it is; None for the one that gcloud is configured with.
        command: what to run.
        alpha: whether to use `gcloud alpha`.
    """
    gcloud = ["gcloud", *(["alpha"] if alpha else []), "compute", "tpus", "tpu-vm", "ssh", name]
    return [*gcloud, *(["--zone", zone] if zone else []), "--command", command, "--worker", "all"]


def missing(argv: Sequence[str]) -> FileNotFoundError:
    """Return the error for a call where there is no gcloud."""
    return FileNotFoundError(
        message(
            given=shlex.join(argv[:5]) + " ...",
            why="there is no gcloud on the PATH",
            allowed="a machine with the Google Cloud CLI, logged in",
            do="install it (https://cloud.google.com/sdk), or see the whole command with --debug or --dry_run",
        )
    )
