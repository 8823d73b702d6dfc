"""Whether flags and config file make a launch on this machine, and whether they say what cancels out."""

from __future__ import annotations

from collections.abc import Iterator

from accelerate.doctor.finding import Finding, Visit, failure, ok, warning
from accelerate.launchers.checks import check
from accelerate.launchers.registry import select


def configuration(visit: Visit) -> Iterator[Finding]:
    """Yield whether a launch with these settings would be refused, and which flags would change nothing."""
    settings = visit.settings
    if visit.unread is not None:
        yield refused(visit.unread)
        return
    try:
        launcher = select(settings)
        check(settings)
        plan = launcher.plan(settings)
    except (ValueError, FileNotFoundError) as error:
        yield refused(error)
        return
    for line in launcher.ignored(settings):
        yield warning(line, "leave it out")
    number = plan.num_processes
    where = settings.file or "no config file"
    yield ok(f"{where}: {number} process{'es' if number > 1 else ''}, by {plan.launcher}")


def refused(error: Exception) -> Finding:
    """Return the finding for a refusal in four parts, without what is allowed."""
    given, why, _, do = (part.partition(": ")[2] for part in [*str(error).split("\n"), "", "", ""][:4])
    return failure(f"{given}: {why}", do)
