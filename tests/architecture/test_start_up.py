"""What starting costs, counted in modules, since counting gives the same answer on every machine.

Half of the package, and every command, must come up without torch: it is what makes `--help` and the launcher quick.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import source

TORCH_FREE = ("__init__.py", "_lazy.py", "base", "config", "launchers", "doctor", "commands", "devices/specs.py")

# Modules that may come with a start, beyond those of a bare interpreter. Today it is a fifth less.
PACKAGE_BUDGET = 40
COMMAND_BUDGET = 115
ACCELERATOR_BUDGET = 160

HEAVY = {"torch", "numpy", "rich", "questionary", "huggingface_hub", "safetensors", "yaml", "psutil"}

REPORT = """
import json, sys
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def modules_after(statement: str, *, first: str = "") -> list[str]:
    """Run a statement in a fresh interpreter and return the modules that it brought."""
    code = first + REPORT.format(statement=statement)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_torch_free_rooms_import_no_torch() -> None:
    names = [source.module_name(path) for path in source.files() if source.is_in(path, TORCH_FREE)]
    names = [name for name in names if not name.endswith("__main__")]
    statement = (
        f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, f'{name} imports torch'"
    )
    assert modules_after(statement)


def test_the_package_itself_is_nearly_free() -> None:
    brought = modules_after("import accelerate")
    assert not HEAVY & set(brought)
    assert len(brought) <= PACKAGE_BUDGET


def test_with_torch_there_the_accelerator_brings_little() -> None:
    brought = modules_after("from accelerate import Accelerator", first="import torch, torch.distributed\n")
    assert not {"rich", "questionary", "huggingface_hub", "safetensors"} & set(brought)
    assert len(brought) <= ACCELERATOR_BUDGET


@pytest.mark.parametrize(
    "arguments",
    [["--help"], *([name, "--help"] for name in ("launch", "config", "env", "estimate-memory", "map"))],
    ids=" ".join,
)
def test_help_needs_no_torch(arguments: list[str]) -> None:
    statement = (
        f"sys.argv = {['accelerate', *arguments]!r}\n"
        "import contextlib, io\n"
        "from accelerate.commands.accelerate_cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n    main()"
    )
    brought = modules_after(statement)
    assert not HEAVY & set(brought)
    assert len(brought) <= COMMAND_BUDGET


def test_modules_can_be_run_as_commands() -> None:
    guarded = ["accelerate_cli", "config", "env", "estimate", "launch", "map", "test"]
    for name in guarded:
        target = source.PACKAGE / "commands" / name
        text = (target / "__main__.py" if target.is_dir() else Path(f"{target}.py")).read_text()
        assert "main()" in text
