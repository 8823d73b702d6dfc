"""Rules of the house that no linter knows: where the environment is read, who calls the states, how long a file is.

Each test returns what breaks the rule, file by file, so that a failure says where to look.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture import source

LONGEST_FILE = 600

# The only rooms that read the process's environment; all others are handed what they need.
MAY_READ_ENVIRONMENT = ("base/environ.py", "base/purge.py", "config/env.py", "cluster", "launchers")

# The public edge: what people call with nothing but their own arguments has to find the state by itself.
# Everything else is handed a Runtime.
MAY_CALL_STATES = (
    "state",
    "accelerator.py",
    "optimizer.py",
    "scheduler.py",
    "logging.py",
    "local_sgd.py",
    "inference.py",
    "data_loader/edge.py",
    "precision/public.py",
    "checkpointing/public.py",
    "commands",
    "utils",
    "test_utils",
    "_legacy.py",
)
STATES = {"PartialState", "AcceleratorState", "GradientState"}

FACES = ("accelerate.utils", "accelerate.commands", "accelerate.test_utils", "accelerate._legacy")
MAY_IMPORT_FACES = ("__init__.py", "utils", "test_utils", "commands", "_legacy.py")

LAUNCHERS_KNOW = (
    "accelerate._lazy",
    "accelerate.base",
    "accelerate.config",
    "accelerate.devices.specs",
    "accelerate.launchers",
)


def broken_in(rooms_allowed: tuple[str, ...], find) -> dict[str, list[str]]:
    """Return what `find` finds in each file outside the rooms where it is allowed."""
    found = {str(path): find(path) for path in source.files() if not source.is_in(path, rooms_allowed)}
    return {path: what for path, what in found.items() if what}


def lies_in(name: str, modules: tuple[str, ...]) -> bool:
    """Tell whether a dotted name is one of `modules` or lies below one."""
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def test_files_are_short_enough_to_read() -> None:
    lengths = {str(path): len((source.PACKAGE / path).read_text().splitlines()) for path in source.files()}
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_modules_say_what_they_are_for_and_evaluate_no_annotation() -> None:
    def missing(path: Path) -> list[str]:
        body = source.tree(path).body
        futures = [node for node in body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        docstring = [] if ast.get_docstring(source.tree(path)) else ["a docstring"]
        return docstring + ([] if futures or len(body) <= 1 else ["from __future__ import annotations"])

    assert broken_in((), missing) == {}


def test_the_environment_is_read_in_its_rooms_only() -> None:
    def reads(path: Path) -> list[str]:
        wanted = {"os.environ", "os.getenv", "os.putenv"}
        attributes = [node for node in ast.walk(source.tree(path)) if isinstance(node, ast.Attribute)]
        used = [f"line {node.lineno}" for node in attributes if ast.unparse(node) in wanted]
        return used + sorted(source.imported_modules(path) & wanted)

    assert broken_in(MAY_READ_ENVIRONMENT, reads) == {}, "read it through accelerate.base.environ"


def test_states_are_called_at_the_public_edge_only() -> None:
    def calls(path: Path) -> list[str]:
        nodes = [node for node in ast.walk(source.tree(path)) if isinstance(node, ast.Call)]
        return [f"{ast.unparse(n.func)} at line {n.lineno}" for n in nodes if ast.unparse(n.func) in STATES]

    assert broken_in(MAY_CALL_STATES, calls) == {}, "take a Runtime instead"


def test_rooms_do_not_import_the_public_face() -> None:
    def faces(path: Path) -> list[str]:
        names = source.imported_modules(path)
        return sorted(name for name in names if lies_in(name, FACES) or name == "accelerate")

    assert broken_in(MAY_IMPORT_FACES, faces) == {}


def test_launchers_know_settings_and_device_rows_only() -> None:
    def others(path: Path) -> list[str]:
        names = {name for name in source.imported_modules(path) if name.startswith("accelerate.")}
        return sorted(name for name in names if not lies_in(name, LAUNCHERS_KNOW) and name != "accelerate.devices")

    launchers = {str(path): others(path) for path in source.files() if source.is_in(path, ("launchers",))}
    assert {path: names for path, names in launchers.items() if names} == {}
