"""Launches that a signal stops: all ranks save after the same step, the launch starts them again, nothing is different.

The run has dropout, workers, a random order, accumulation and a scheduler that moves once an epoch, and ends with the
weights of one that nobody has stopped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

LIMIT = 240
#: Where processes stand is on the standard error of a launch that hangs.
CLI = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--cpu", "--watchdog", "100"]
SCRIPT = '''
import json, os, signal, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed

folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
life = len(list(folder.glob("life-*-0")))
project = ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=2)
accelerator = Accelerator(project_config=project, gradient_accumulation_steps=2)
rank = accelerator.process_index
accelerator.wait_for_everyone()
(folder / f"life-{life}-{rank}").touch()


def happens(epoch, where):
    """Be signalled, if that is planned for here."""
    for this_life, this_rank, this_epoch, this_where, number in plan:
        if (this_life, this_rank, this_epoch, this_where) == (life, rank, epoch, where):
            os.kill(os.getpid(), number)
            time.sleep(1)  # these steps are so short that all would be over before anybody has looked
    if (life, rank, epoch, where) == (0, 0, 1, 1):
        (folder / "here").touch()
        limit = time.monotonic() + 120
        while (folder / "wait").exists() and time.monotonic() < limit:
            time.sleep(0.01)


set_seed(7, device_specific=True)
data = TensorDataset(torch.randn(40, 6, generator=torch.Generator().manual_seed(1)))
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
set_seed(11, device_specific=True)
model, optimizer, training, validation = accelerator.prepare(
    model, optimizer, DataLoader(data, 4, shuffle=True, num_workers=1), DataLoader(data, 8)
)
accelerator.register_for_checkpointing(scheduler)
start = accelerator.resume()
accelerator.checkpoint_on_signal(signal.SIGTERM, signal.SIGUSR1)
for epoch in range(start.epoch, 3):
    model.train()
    for number, (inputs,) in enumerate(training, start.batches if epoch == start.epoch else 0):
        with accelerator.accumulate(model):
            happens(epoch, number)
            accelerator.backward(model(inputs).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    for (inputs,) in validation:
        happens(epoch, "validation")
        with torch.no_grad():
            accelerator.gather_for_metrics(model(inputs))
    scheduler.step()
    happens(epoch, "end")
accelerator.end_training()
torch.save(accelerator.unwrap_model(model).state_dict(), folder / f"weights-{rank}.pt")
'''


def start(folder: Path, plan: list[tuple[object, ...]], *flags: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(SCRIPT)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "TORCHELASTIC_"))}
    env |= {"HF_HOME": str(folder / "hf"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*CLI, *flags, str(folder / "script.py"), str(folder), json.dumps(plan)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code of a launch, and what it wrote."""
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        for each in (*psutil.Process(process.pid).children(recursive=True), process):
            each.kill()
        pytest.fail(f"the launch doesn't end:\n{''.join(process.communicate())}")
    return process.returncode, out + err


def weights(folder: Path, ranks: int = 2) -> list[dict[str, torch.Tensor]]:
    return [torch.load(folder / f"weights-{rank}.pt") for rank in range(ranks)]


def assert_same(found: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(mine[name], value) for name, value in theirs.items())


def lives(folder: Path) -> int:
    return len(list(folder.glob("life-*-0")))


TWO = ("--num_processes", "2")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    """The weights at the end of a run that nobody stops."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, text = end(start(folder, [], *TWO))
    assert code == 0, text
    return weights(folder)


@pytest.mark.timeout(2 * LIMIT)
def test_ranks_that_are_signalled_anywhere_are_started_again_and_end_the_same(tmp_path, undisturbed):
    plan = [
        (0, 1, 0, 1, signal.SIGUSR1),  # in the middle of a window, one rank
        (1, 0, 0, "validation", signal.SIGTERM),  # where nobody trains: all stop before the next epoch
        (2, 0, 1, 2, signal.SIGTERM),  # both, at different steps
        (2, 1, 1, 3, signal.SIGUSR1),
        (3, 1, 2, 4, signal.SIGUSR1),  # in the last batch of all, or after it: nothing is left to stop
    ]
    code, text = end(start(tmp_path, plan, *TWO, "--max_restarts", "5"))
    assert code == 0, text
    assert lives(tmp_path) == 4, text
    assert text.count("exit code 75") == 3, text
    assert_same(weights(tmp_path), undisturbed)


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGUSR1, 75)])
def test_a_launch_that_is_signalled_lets_its_ranks_save_and_a_further_one_goes_on(tmp_path, undisturbed, number, code):
    (tmp_path / "wait").touch()
    process = start(tmp_path, [], *TWO)
    limit = time.monotonic() + LIMIT
    while not (tmp_path / "here").exists():
        assert time.monotonic() < limit
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    time.sleep(0.5)
    (tmp_path / "wait").unlink()
    found, text = end(process)
    assert found == code, text
    assert (tmp_path / "checkpoints" / "checkpoint_0" / "manifest.json").exists(), text
    assert not (tmp_path / "weights-0.pt").exists()
    code, text = end(start(tmp_path, [], *TWO))
    assert code == 0, text
    assert_same(weights(tmp_path), undisturbed)


@pytest.mark.timeout(2 * LIMIT)
def test_one_process_leaves_with_the_code_and_goes_on_when_it_is_launched_again(tmp_path):
    code, text = end(start(tmp_path, [(0, 0, 0, 1, signal.SIGTERM)], "--num_processes", "1"))
    assert code == 75, text
    assert "Traceback" not in text
    code, text = end(start(tmp_path, [], "--num_processes", "1"))
    assert code == 0, text
    assert len(weights(tmp_path, 1)) == 1
