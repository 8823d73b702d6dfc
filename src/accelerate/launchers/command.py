"""The command line of one process: Python and a script, Python and a module, or a program of its own."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator

from accelerate.config.enums import DistributedType
from accelerate.config.kinds import Boolean, Listing
from accelerate.launchers.settings import LaunchSettings, declared

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


def typed(config: LaunchSettings, left_out: Collection[str], sources: Collection[str] = ("flag",)) -> Iterator[str]:
    """Yield settings as flags of another launch.

    Args:
        config: the settings of this one.
        left_out: those that the other launch shall not have, by `dest`.
        sources: through which doors settings came that it shall have: "flag", "file".
    """
    for dest, found in config.found.items():
        one = declared()[dest]
        if found.source not in sources or dest in left_out or one.flag is None:
            continue
        if isinstance(one.kind, Boolean) and one.kind.switch:
            yield one.flag if found.value else f"--no_{one.flag.lstrip('-')}"
        elif isinstance(one.kind, Listing) and one.kind.repeat:
            for value in found.value:
                yield from (one.flag, str(value))
        else:
            yield from (one.flag, one.kind.format(found.value))
