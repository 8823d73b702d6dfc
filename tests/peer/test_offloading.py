"""Offload folders that 1.15 has written are read here, and those written here are read there, bit by bit the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.peer.conftest import LIMIT, environment, peer_python

SCRIPT = Path(__file__).with_name("offloading.py")


def facts(release: str, action: str, folder: Path) -> dict[str, Any]:
    """Run the script and return what it prints."""
    python = str(peer_python()) if release == "1.15" else sys.executable
    done = subprocess.run(
        [python, str(SCRIPT), action, str(folder)],
        env=environment(0, 1, "0"),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("writer", "reader"), [("1.15", "here"), ("here", "1.15")], ids=["from 1.15", "to 1.15"])
def test_weights_and_what_is_computed_with_them_cross(tmp_path: Path, writer: str, reader: str) -> None:
    written = facts(writer, "write", tmp_path)
    assert len(written["tensors"]) == 11
    assert facts(reader, "read", tmp_path) == written
