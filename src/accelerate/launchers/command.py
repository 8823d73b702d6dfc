"""The command line of one process: Python and a script, Python and a module, or a program of its own."""

from __future__ import annotations

import sys

from accelerate.config.enums import DistributedType
from accelerate.launchers.settings import LaunchSettings

#: The kinds of run whose processes need nothing but variables; the others have launchers of their own.
PLAIN = frozenset(
    kind
    for kind in DistributedType
    if kind in (DistributedType.NO, DistributedType.FSDP, DistributedType.DEEPSPEED) or kind.value.startswith("MULTI_")
)


def is_plain(config: LaunchSettings) -> bool:
    """Whether the run is one process, or several that torch.distributed connects."""
    return config.kind is None or config.kind in PLAIN


def command(config: LaunchSettings) -> tuple[str, ...]:
    """Return the command line of one process."""
    if config.get("no_python"):
        return (config.script, *config.arguments)
    module = ("-m",) if config.get("module") else ()
    return (sys.executable, *module, config.script, *config.arguments)
