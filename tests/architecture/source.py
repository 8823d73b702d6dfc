"""The package's source as data: its files, their syntax trees, and the rooms they belong to."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "accelerate"


def files() -> list[Path]:
    """Return every Python file of the package, as paths below it."""
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file of the package."""
    return ast.parse((PACKAGE / path).read_text(), filename=str(path))


def module_name(path: Path) -> str:
    """Return the dotted name under which a file of the package is imported."""
    parts = ("accelerate", *path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_in(path: Path, rooms: tuple[str, ...]) -> bool:
    """Tell whether a file is one of `rooms`, or lies in one that is a folder."""
    return any(path.as_posix() == room or path.as_posix().startswith(room.rstrip("/") + "/") for room in rooms)


def imported_modules(path: Path, *, type_checking: bool = False) -> set[str]:
    """Return the absolute modules (and `module.name`s) that a file imports, wherever in it."""
    nodes = list(ast.walk(tree(path)))
    if not type_checking:
        skipped = {id(inner) for node in nodes if _is_type_checking(node) for inner in ast.walk(node)}
        nodes = [node for node in nodes if id(node) not in skipped]
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            found |= {f"{base}.{alias.name}" for alias in node.names} | {base}
    return found


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = ("accelerate", *path.parts[:-1])
    return ".".join((*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
