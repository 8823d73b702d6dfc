"""A LLaMA of transformers trains under every template of `examples/configs` to the weights of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

pytest.importorskip("transformers", reason="needs transformers")

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Sequence parallel has tests of its own, where DeepSpeed is installed.
TEMPLATES = sorted(each for each in (EXAMPLES / "configs").glob("*_cpu.yaml") if "sequence" not in each.name)
CLI = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
LIMIT = 240
#: fp32. Adam divides by the size of gradients, so that where they are tiny their last digits weigh as much as any.
BOUND = 1e-5


def train(folder: Path, *launch: str) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Run the example in `folder` and return the lines with losses that it prints, and the weights."""
    names = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    env |= {"OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": ""}
    command = [*launch, str(EXAMPLES / "llama.py"), "--steps", "10", "--output", str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone"), sys.executable)


@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_weights_are_those_of_one_process(tmp_path: Path, alone, template: Path) -> None:
    lines, weights = train(tmp_path, *CLI, "--config_file", str(template))
    expected_lines, expected = alone
    step, loss = lines[0].split("loss")
    expected_step, expected_loss = expected_lines[0].split("loss")
    assert step == expected_step == "step  10  "
    assert float(loss) == pytest.approx(float(expected_loss), abs=2e-4)
    processes = yaml.safe_load(template.read_text())["num_processes"]
    assert lines[1] == f"Trained by {processes} process(es) on cpu."
    assert weights.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, atol=BOUND, rtol=0)
