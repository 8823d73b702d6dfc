"""A launch as a value: what would be started, with which variables, how often and where.

Launchers make a plan without touching anything, and carry it out afterwards; so a plan can be printed
(`--dry_run`), compared in a test, and made for a machine that isn't this one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate.base.environ import FALSE_WORDS, TRUE_WORDS

HIDDEN = "***"
#: In a command, the name of the machine that it reaches.
HOST = "{host}"
#: What the name of a variable or flag ends with, or has among its words, when its value is nobody's business.
SECRET_ENDINGS = ("api_key", "access_key", "access_key_id", "private_key")
SECRET_WORDS = frozenset({"token", "secret", "password", "passwd", "apikey", "credential", "credentials"})


@dataclass(frozen=True)
class LaunchPlan:
    """What one machine starts.

    Args:
        launcher: name of the launcher that made the plan.
        argv: the command line that starts it all; a shell could run it with `env`.
        env: the variables that the processes get beside those of the launching one.
        num_processes: in total, over all machines; 0 where what starts them counts the cores.
        num_machines: how many machines start such a plan.
        machine_rank: which of them this is.
        address: where the processes meet; None for one process.
        port: by which port; None for one process, 0 for one that is chosen when they start.
        script: what the person asked to run, for messages.
        stdin: what the command reads, such as a batch script.
        hosts: the machines on which the command is run at once; `HOST` in it stands for the name of each.
        request: what is asked of a service that starts the processes itself, in its own words; no command is run.
    """

    launcher: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    num_processes: int = 1
    num_machines: int = 1
    machine_rank: int = 0
    address: str | None = None
    port: int | None = None
    script: str = ""
    stdin: str = ""
    hosts: tuple[str, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def processes_here(self) -> int:
        """How many processes this machine starts."""
        return self.num_processes // self.num_machines

    @property
    def commands(self) -> list[list[str]]:
        """The commands to run: one, or one for each host."""
        return [[host if word == HOST else word for word in self.argv] for host in self.hosts or (HOST,)]

    @property
    def hosts_meeting_point(self) -> bool:
        """Whether the port is one of this machine."""
        return self.port is not None and self.machine_rank == 0

    def __str__(self) -> str:
        lines = [f"launcher:    {self.launcher}"]
        if self.request:
            lines += ["asks for:", *_shown_request(self.request)]
        else:
            lines += [f"processes:   {self._processes()}"]
            lines += [f"command:     {shlex.join(hide_secrets(command))}" for command in self.commands]
        lines.append("environment:" if self.env else "environment: nothing added")
        lines += [f"  {name}={_shown(name, value)}" for name, value in sorted(self.env.items())]
        if self.stdin:
            lines += ["it reads:", *(f"  {line}" for line in self.stdin.splitlines())]
        return "\n".join(lines)

    def _processes(self) -> str:
        """Say how many processes run where, and where they meet."""
        text = str(self.num_processes) if self.num_processes else "one for each core"
        if self.num_machines > 1:
            text += f" on {self.num_machines} machines, of which this is number {self.machine_rank}"
        if self.address is not None:
            text += f", meeting at {self.address}, port {self.port or 'free'}"
        return text


def hide_secrets(argv: Sequence[str]) -> list[str]:
    """Return a command line with the values of flags that name a secret replaced by `***`."""
    return list(_hidden(argv))


def _hidden(argv: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line, secrets hidden."""
    remote = list(argv[:1]) == ["gcloud"]
    hide_next, before = False, ""
    for word in argv:
        name, equals, value = word.partition("=")
        if remote and before == "--command":
            yield shlex.join(hide_secrets(shlex.split(word)))
        elif hide_next and not word.startswith("-"):
            yield HIDDEN
        elif equals and value:
            yield f"{name}={_censored(name, value)}"
        else:
            yield word
        hide_next = word.startswith("-") and not equals and _is_secret(name)
        before = word


def _censored(name: str, value: str) -> str:
    """Return a value, or stars if its name says that it is a secret; a switch is none."""
    plain = value.lower() in TRUE_WORDS + FALSE_WORDS
    return HIDDEN if _is_secret(name) and not plain else value


def _shown(name: str, value: str) -> str:
    """Return a value as a shell takes it, or stars."""
    censored = _censored(name, value)
    return censored if censored == HIDDEN else shlex.quote(censored)


def _shown_request(request: Mapping[str, Any], indent: str = "  ") -> Iterator[str]:
    """Yield a line for each part of a request, secrets hidden; what is None isn't asked for."""
    for name, value in request.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _shown_request(value, f"{indent}  ")
        elif value is not None:
            yield f"{indent}{name}: {_shown(name, value) if isinstance(value, str) else value}"


def _is_secret(name: str) -> bool:
    """Whether the name of a flag or variable promises a secret."""
    plain = name.lower().replace("-", "_")
    return plain.endswith(SECRET_ENDINGS) or not SECRET_WORDS.isdisjoint(plain.split("_"))
