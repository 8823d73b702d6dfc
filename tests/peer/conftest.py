"""Running one script with this release and with accelerate 1.15.0, which lives in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelerate.base.ports import get_free_port

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("training.py")
LIMIT = 240

Facts = list[dict[str, Any]]


def peer_python() -> Path | None:
    """Return the interpreter that has 1.15.0, if there is one."""
    named = os.environ.get("ACCELERATE_BENCH_PEER")
    found = Path(named) if named else ROOT / ".venv-peer" / "bin" / "python"
    return found if found.exists() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave these tests out where there is nobody to compare with."""
    here = [item for item in items if Path(str(item.path)).parent == SCRIPT.parent]
    for item in here:
        item.add_marker(pytest.mark.peer)
        item.add_marker(pytest.mark.timeout(3 * LIMIT))
        if peer_python() is None:
            reason = "accelerate 1.15.0 is not installed: `make test-peer` does it, or ACCELERATE_BENCH_PEER names it"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def run() -> Callable[..., Facts]:
    """Run the script and return what each of its processes has printed."""

    def run(release: str, action: str, folder: Path, processes: int = 1, **settings: Any) -> Facts:
        python = str(peer_python()) if release == "1.15" else sys.executable
        text = json.dumps({"action": action, "folder": str(folder), **settings})
        port = str(get_free_port())
        started = [
            subprocess.Popen(
                [python, str(SCRIPT), text],
                env=environment(rank, processes, port),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        try:
            return [facts_of(process, release) for process in started]
        finally:
            for process in started:
                process.kill()
                process.communicate()

    return run


@pytest.fixture
def peer_has() -> Callable[[str], bool]:
    """Tell whether a package is installed beside 1.15.0."""
    find = "import sys, importlib.util; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    return lambda name: (
        not subprocess.run([str(peer_python()), "-c", find, name], check=False, timeout=LIMIT).returncode
    )


def environment(rank: int, processes: int, port: str) -> dict[str, str]:
    """Return what a launcher would tell a process."""
    # Not PYTHONPATH: it could lead 1.15.0 to this release.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "PYTHON"))}
    kept |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    if processes == 1:
        return kept
    return kept | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "ACCELERATE_USE_CPU": "true",
    }


def facts_of(process: subprocess.Popen[str], release: str) -> dict[str, Any]:
    """Wait for a process and return what it has computed, which has to be by the release that is meant."""
    out, err = process.communicate(timeout=LIMIT)
    assert ("RELEASE 1.15.0" in out.splitlines()) == (release == "1.15"), out + err
    lines = [line.removeprefix("FACTS ") for line in out.splitlines() if line.startswith("FACTS ")]
    assert process.returncode == 0, out + err
    return json.loads(lines[-1])
