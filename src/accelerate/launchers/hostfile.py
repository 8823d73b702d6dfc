"""Files that list machines, as mpirun and DeepSpeed read them, and filters that choose some of them.

We read them before the programs do, because those name neither the line nor the file when something is wrong, or go on
without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accelerate.base.messages import did_you_mean, message

#: `host` or `host:0,2` in a filter, with @ between them.
CHOICE = re.compile(r"(?P<host>[^:@]+)(:(?P<slots>\d+(,\d+)*))?")


@dataclass(frozen=True)
class Host:
    """A line of a hostfile: a machine, and how many processes it takes, if it says so."""

    name: str
    slots: int | None = None


@dataclass(frozen=True)
class Format:
    """How one program wants its hostfile.

    Args:
        flag: what names the file.
        line: what a line looks like, with a group `host` and groups for its slots.
        allowed: the same, for people.
        once: whether a machine can have one line only.
    """

    flag: str
    line: re.Pattern[str]
    allowed: str
    once: bool


MPI = Format(
    "--mpirun_hostfile",
    re.compile(r"(?P<host>[\w.-]+)(:(?P<colon>\d+))?(\s+slots\s*=\s*(?P<slots>\d+))?(\s+max[_-]slots\s*=\s*\d+)?"),
    "`node1`, `node1 slots=4`, `node1:4`, and comments after #",
    once=False,
)
DEEPSPEED = Format(
    "--deepspeed_hostfile",
    re.compile(r"(?P<host>\S+)\s+slots=(?P<slots>\d+)(\s+max[_-]slots=\d+)?"),
    "`node1 slots=4`, without blanks around =, and comments after #",
    once=True,
)


def read_hostfile(path: Path, how: Format) -> list[Host]:
    """Return the machines that a hostfile lists.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it lists no machine, or a line isn't one of such a file.
    """
    if not path.is_file():
        raise FileNotFoundError(
            message(
                given=f"{how.flag} {path}",
                why="there is no such file",
                allowed="a file with a line for each machine, such as `node1 slots=4`",
                do="correct the path",
            )
        )
    hosts: list[Host] = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        line = text.partition("#")[0].strip()
        found = how.line.fullmatch(line)
        if line and found is None:
            raise _bad_line(path, number, text, "it names no machine", how.allowed)
        if found is None:
            continue
        if how.once and any(host.name == found["host"] for host in hosts):
            raise _bad_line(path, number, text, "the machine has a line already", "one line for each machine")
        slots = found["slots"] or found.groupdict().get("colon")
        hosts.append(Host(found["host"], int(slots) if slots else None))
    if not hosts:
        raise _bad_line(path, 1, "no line with a machine", "it names no machine", how.allowed)
    return hosts


def _bad_line(path: Path, number: int, text: str, why: str, allowed: str) -> ValueError:
    """Return the error for a line of a hostfile."""
    return ValueError(
        message(given=f"line {number} of {path}: {text}", why=why, allowed=allowed, do="correct the line, or delete it")
    )


def choose(hosts: Sequence[Host], include: str | None, exclude: str | None) -> dict[str, list[int]]:
    """Return the slots of each machine that are left by a filter, in the order of the hostfile.

    Args:
        hosts: the machines, each with its slots.
        include: `node1@node2:0,2` uses all of one machine, and two slots of another.
        exclude: likewise, what to leave out.

    Raises:
        ValueError: a filter names what isn't there, or leaves nothing.
    """
    all_slots = {host.name: list(range(host.slots or 0)) for host in hosts}
    if include is None and exclude is None:
        return all_slots
    named = dict(_named(include or exclude or "", all_slots))
    kept = {
        name: [slot for slot in slots if (slot in named.get(name, [])) == (include is not None)]
        for name, slots in all_slots.items()
    }
    kept = {name: slots for name, slots in kept.items() if slots}
    if not kept:
        raise ValueError(
            message(
                given=f"the filter {include or exclude}",
                why="it leaves no machine",
                allowed=f"a filter that leaves some of {', '.join(all_slots)}",
                do="correct it, or leave it out",
            )
        )
    return kept


def _named(text: str, there: dict[str, list[int]]) -> Iterator[tuple[str, list[int]]]:
    """Yield the machines that a filter names, with their slots."""
    found: dict[str, list[int]] = {}
    for part in text.split("@"):
        choice = CHOICE.fullmatch(part.strip())
        if choice is None:
            raise _bad_choice(
                text, f"{part!r} names no machine", "node1, node1:0,2, and @ between several", "correct it"
            )
        name = choice["host"]
        if name not in there:
            names = ", ".join(there)
            raise _bad_choice(text, f"the hostfile has no machine {name!r}", names, did_you_mean(name, there))
        slots = [int(slot) for slot in choice["slots"].split(",")] if choice["slots"] else there[name]
        absent = [slot for slot in slots if slot not in there[name]]
        if absent:
            numbers = f"0 to {len(there[name]) - 1}"
            raise _bad_choice(text, f"{name} has no slot {absent[0]}", numbers, "correct the number; they begin at 0")
        found.setdefault(name, []).extend(slots)
    yield from found.items()


def _bad_choice(text: str, why: str, allowed: str, do: str) -> ValueError:
    """Return the error for a filter."""
    return ValueError(message(given=f"the filter {text}", why=why, allowed=allowed, do=do))
