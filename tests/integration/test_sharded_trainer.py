"""transformers' Trainer shards models through this library, and goes on from its checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs transformers")

SCRIPT = Path(__file__).with_name("sharded_trainer.py")
CONFIGS = Path(__file__).parents[2] / "examples" / "configs"
CLI = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--num_processes", "2", "--config_file"]
LIMIT = 240


def run(folder: Path, *launch: str, checkpoint: str = "") -> dict[str, list[float]]:
    """Train in `folder`, from the beginning or a checkpoint, and return losses and norms."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "FSDP_"))}
    env |= {"OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": ""}
    command = [*launch, str(SCRIPT), str(folder), *([str(folder / checkpoint)] if checkpoint else [])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("FOUND")).removeprefix("FOUND"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone"), sys.executable)


@pytest.mark.timeout(2 * LIMIT + 60)
@pytest.mark.parametrize("version", ["fsdp2", "fsdp1"])
def test_it_trains_and_resumes_as_one_process_does(tmp_path: Path, alone, version: str) -> None:
    launch = [*CLI, str(CONFIGS / f"{version}_cpu.yaml")]
    for checkpoint in ("", "checkpoint-3"):
        found = run(tmp_path, *launch, checkpoint=checkpoint)
        for name, values in alone.items():
            assert found[name] == pytest.approx(values, rel=2e-4), (name, checkpoint)
