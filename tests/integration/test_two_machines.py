"""Two machines, played by two network namespaces: they meet, begin again together, and end together."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

LIMIT = 240
MAIN, OTHER = "10.77.0.1", "10.77.0.2"
PORT = "29511"


def privileged() -> bool:
    """Whether namespaces are asked for, and can be made here."""
    if (
        "ACCELERATE_TEST_MACHINES" not in os.environ
        or sys.platform != "linux"
        or os.geteuid() != 0
        or shutil.which("ip") is None
    ):
        return False
    name = f"try-{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return made


pytestmark = [
    pytest.mark.skipif(
        not privileged(), reason="machines are played by `make test-integration`, as root and with iproute2"
    ),
    pytest.mark.timeout(600),
]

TRAIN = """
import os, signal
from pathlib import Path

import torch

from accelerate import Accelerator


class Steps:
    number = 0

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


accelerator, steps, kept = Accelerator(cpu=True), Steps(), Path("kept")
model = torch.nn.Linear(1, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
accelerator.register_for_checkpointing(steps)
again = kept.is_dir()
if again:
    accelerator.load_state(str(kept))
print(f"rank {accelerator.process_index} begins at step {steps.number}", flush=True)
while steps.number < 6:
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    optimizer.zero_grad()
    steps.number += 1
    accelerator.save_state(str(kept))
    if steps.number == 3 and not again and accelerator.process_index == 2 and "KILL" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
print(f"rank {accelerator.process_index} ends at step {steps.number} with {ranks}", flush=True)
accelerator.end_training()
"""
SLEEP = """
import os, signal, time
from accelerate import PartialState

state = PartialState(cpu=True)
if state.process_index == 3:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(120)
"""


@dataclass
class Machine:
    """One of the two: its namespace, its end of the cable, and how to launch on it."""

    namespace: str
    cable: str
    rank: int

    def launch(self, folder: Path, *flags: str, **env: str) -> subprocess.Popen[str]:
        """Start `train.py` of the folder on this machine, which has two of four processes."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "TORCH"))}
        kept |= {"HF_HOME": str(folder), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.cable, **env}
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-m", "accelerate.commands.launch", "--cpu"]
        machines = ["--num_machines", "2", "--machine_rank", str(self.rank), "--num_processes", "4"]
        place = ["--main_process_ip", MAIN, "--main_process_port", PORT]
        return subprocess.Popen(
            [*command, *machines, *place, *flags, "train.py"],
            cwd=folder,
            env=kept,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Machine]]:
    """Return two machines with a cable between them, and nothing else."""
    mark = uuid.uuid4().hex[:6]
    made = [Machine(f"acc-{mark}-{rank}", f"a{mark}{rank}", rank) for rank in (0, 1)]
    try:
        for one in made:
            ip("netns", "add", one.namespace)
        ip("link", "add", made[0].cable, "type", "veth", "peer", "name", made[1].cable)
        for one, address in zip(made, (MAIN, OTHER), strict=True):
            ip("link", "set", one.cable, "netns", one.namespace)
            ip("-n", one.namespace, "addr", "add", f"{address}/24", "dev", one.cable)
            for link in ("lo", one.cable):
                ip("-n", one.namespace, "link", "set", link, "up")
        yield made
    finally:
        for one in made:
            subprocess.run(["ip", "netns", "del", one.namespace], capture_output=True, check=False)


def ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


def ends(launches: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return exit code and output of every launch; one that takes too long ends the others."""
    try:
        return [(one.returncode, out, err) for one in launches for out, err in [one.communicate(timeout=LIMIT)]]
    finally:
        for one in launches:
            if one.poll() is None:
                os.killpg(one.pid, 9)
                one.communicate()


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_they_meet_and_begin_again_after_a_process_is_killed(
    machines: list[Machine], tmp_path: Path, backend: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    flags = ["--rdzv_backend", backend, "--max_restarts", "2"]
    found = ends([one.launch(tmp_path, *flags, KILL="1") for one in machines])
    assert [code for code, _, _ in found] == [0, 0], found
    for rank in range(4):
        out = found[rank // 2][1]
        assert f"rank {rank} begins at step 0\n" in out
        assert f"rank {rank} begins at step 3\n" in out, "what was saved before the restart is kept"
        assert f"rank {rank} ends at step 6 with [0, 1, 2, 3]\n" in out
    assert "was killed by signal 9 (SIGKILL)" in found[1][2]
    assert "starting all again (restart 1 of 2)" in found[1][2]


def test_a_machine_whose_processes_fail_ends_the_other(machines: list[Machine], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLEEP)
    found = ends([one.launch(tmp_path) for one in machines])
    assert [code for code, _, _ in found] == [137, 137], found
    assert "rank 3 of 4 on host" in found[0][2], "the other machine says who it was"
    assert "was killed by signal 9 (SIGKILL)" in found[0][2]
    assert "the processes of this machine were stopped" in found[0][2]


@pytest.mark.parametrize(
    ("rank", "flags", "said"),
    [
        (1, ["--rdzv_conf", "timeout=3"], "connecting was tried for 3 s; the last time: connection refused"),
        (0, ["--rdzv_conf", "timeout=3"], "they weren't together after"),
        (0, ["--rdzv_backend", "c10d", "--rdzv_conf", "join_timeout=3"], "they weren't together after"),
    ],
)
def test_a_machine_that_is_alone_gives_up_and_says_what_it_tried(
    machines: list[Machine], tmp_path: Path, rank: int, flags: list[str], said: str
) -> None:
    (tmp_path / "train.py").write_text(SLEEP)
    code, _, err = ends([machines[rank].launch(tmp_path, *flags)])[0]
    assert code == 2
    assert f"Given: machine {rank} of 2" in err
    assert said in err
    assert "Traceback" not in err
