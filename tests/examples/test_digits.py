"""The demo runs, unchanged, in each of the three ways that its first lines promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"
CLI = [sys.executable, "-m", "accelerate.commands.accelerate_cli"]
WAYS = {
    "python": ([sys.executable], 1),
    "torchrun": ([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"], 2),
    "accelerate launch": ([*CLI, "launch", "--cpu", "--num_processes", "2"], 2),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_demo_trains_and_counts_every_held_out_image_once(way: str, tmp_path: Path) -> None:
    command, processes = WAYS[way]
    output = tmp_path / "digits"
    done = subprocess.run(
        [*command, str(SCRIPT), "--epochs", "2", "--output", str(output)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accuracy, counted = re.search(r"accuracy ([\d.]+)%: \d+ of (\d+) images", done.stdout).groups()
    assert counted == "360"
    assert float(accuracy) > 85
    assert f"Trained by {processes} process(es) on cpu." in done.stdout
    assert done.stdout.count("each counted once") == 1, "only the main process reports"
    assert done.stdout.splitlines()[-2:] == [
        f"Weights         {output / 'model.safetensors'}",
        f"Learning curve  {output / 'learning_curve.png'}",
    ]
    assert (output / "model.safetensors").stat().st_size > 100_000
    assert (output / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "Warning" not in done.stderr
