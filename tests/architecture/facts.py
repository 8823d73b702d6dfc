"""Compares the package with the recorded facts about the public API.

`public_api.json` says, module by module, which names Accelerate 1.15 has, with their parameters, defaults, members
and values. Two lists say what is absent and why: `not_yet.txt` (a later capability brings it) and `left_out.txt`
(not to come, with the reason). An entry is `module`, `module:Name` or `module:Class.member`, and covers what is below.

    python -m tests.architecture.facts          prints what is absent and listed nowhere
    python -m tests.architecture.facts --write  rewrites not_yet.txt from what is absent today
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NOT_YET = HERE / "not_yet.txt"
LEFT_OUT = HERE / "left_out.txt"
DIFFERS = HERE / "differs.txt"
ABSENT = object()


@functools.cache
def facts() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the recorded facts: module -> name -> fact."""
    return json.loads((HERE / "public_api.json").read_text())


def read_list(path: Path) -> dict[str, str]:
    """Return the entries of a list with their reasons; what follows a `#` is the reason, or a comment."""
    entries = (line.partition("#") for line in path.read_text().splitlines())
    return {entry.strip(): reason.strip() for entry, _, reason in entries if entry.strip()}


def is_listed(entry: str, listed: dict[str, str]) -> bool:
    """Tell whether an entry, the class it belongs to or its whole module is in a list."""
    module, _, name = entry.partition(":")
    return bool({entry, module, f"{module}:{name.partition('.')[0]}"} & listed.keys())


def resolve(module: str, name: str = "") -> Any:
    """Return what lies at the dotted `name` in a module, or ABSENT; without a name, whether there is such a module."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a package above it
        spec = None
    if spec is None or not name:
        return spec or ABSENT
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        try:
            found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        except AttributeError:
            return ABSENT
    return found


def entries(module: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every recorded name of a module, members of classes included, each with its own fact."""
    for name, fact in facts()[module].items():
        yield name, fact
        for member, parameters in fact.get("methods", {}).items():
            yield f"{name}.{member}", {"def": parameters, "method": True}
        for member in fact.get("properties", []):
            yield f"{name}.{member}", {"property": True}
        for member in fact.get("attributes", []):
            yield f"{name}.{member}", {"attribute": True}


def absent(module: str) -> list[str]:
    """Return the recorded entries of a module which the package doesn't have; nothing below an absent one."""
    if resolve(module) is ABSENT:
        return [module]
    missing = [name for name, _ in entries(module) if resolve(module, name) is ABSENT]
    return [
        f"{module}:{name}"
        for name in missing
        if name.partition(".")[0] == name or name.partition(".")[0] not in missing
    ]


def differences(module: str) -> dict[str, str]:
    """Return what a module has but not as recorded: entry -> in what it differs."""
    found = {}
    for name, fact in entries(module):
        value = resolve(module, name)
        if value is not ABSENT and (said := _difference(value, fact)):
            found[f"{module}:{name}"] = said
    return found


def _difference(value: Any, fact: dict[str, Any]) -> str:
    """Say in what a value differs from its fact; empty when it doesn't."""
    if "def" in fact or "init" in fact:
        return _signature_difference(value, fact.get("def", fact.get("init")), method="method" in fact)
    if "enum" in fact:
        members = {member.name: repr(member.value) for member in value}
        wrong = {name: text for name, text in fact["enum"].items() if members.get(name) != text}
        return f"members {wrong} are { ({name: members.get(name) for name in wrong}) }" if wrong else ""
    if "value" in fact:
        return "" if repr(value) == fact["value"] else f"is {value!r}, not {fact['value']}"
    if "property" in fact:
        return "" if isinstance(value, (property, functools.cached_property)) else "is not a property"
    if "from" in fact:
        home = resolve(fact["from"], getattr(value, "__name__", ""))
        return "" if home is ABSENT or home is value else f"is not the one of {fact['from']}"
    return ""


def _signature_difference(value: Any, recorded: list[str], *, method: bool) -> str:
    """Say which call that 1.15 accepts would not be accepted, or would mean something else."""
    bound = method and not isinstance(value, staticmethod)
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    ours = [p for p in inspect.signature(value).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    ours = ours[1:] if bound else ours
    positional = True
    names = set()
    for index, text in enumerate(recorded):
        if text.startswith("*"):
            positional = positional and text.startswith("**")
            continue
        name, has_default, default = text.partition("=")
        names.add(name)
        mine = next((p for p in ours if p.name == name), None)
        if mine is None:
            return f"has no parameter {name!r}"
        if positional and (index >= len(ours) or ours[index] is not mine or mine.kind is mine.KEYWORD_ONLY):
            return f"parameter {name!r} is not at position {index}"
        if has_default and not _same_default(mine.default, default):
            return f"default of {name!r} is {mine.default!r}, not {default}"
    extra = [p.name for p in ours if p.name not in names and p.default is p.empty]
    return f"asks for {extra}, which 1.15 doesn't have" if extra else ""


def _same_default(ours: Any, recorded: str) -> bool:
    """Compare a default with its recorded form; objects that have no form of their own need only be there."""
    if ours is inspect.Parameter.empty:
        return False
    return recorded.startswith("<") or "~/" in recorded or repr(ours) == recorded


def unlisted() -> list[str]:
    """Return everything that is absent and neither expected later nor left out on purpose."""
    left_out = read_list(LEFT_OUT)
    return [entry for module in facts() for entry in absent(module) if not is_listed(entry, left_out)]


def main() -> None:
    """Print, or write into not_yet.txt, what is absent today."""
    missing = sorted(unlisted())
    if "--write" in sys.argv:
        comments = [line for line in NOT_YET.read_text().splitlines() if line.startswith("#")]
        NOT_YET.write_text("\n".join([*comments, *missing]) + "\n")
        return
    not_yet = read_list(NOT_YET)
    print(*(entry for entry in missing if not is_listed(entry, not_yet)), sep="\n")


if __name__ == "__main__":
    main()
