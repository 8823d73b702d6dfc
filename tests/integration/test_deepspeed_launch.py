"""DeepSpeed's own runner, really run by a launch: on this machine, and on two that are stand-ins for ssh and pdsh."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from accelerate.base.ports import get_free_port
from tests.launch.conftest import Launch, end, launch  # noqa: F401  (a fixture)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed isn't installed; `make test-integration` does it"
)

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
told = [os.environ.get(f"ACCELERATE_{name}") for name in ("USE_DEEPSPEED", "DEEPSPEED_MOE_LAYER_CLS_NAMES")]
words = ["rank", dist.get_rank(), "of", dist.get_world_size(), int(total), *told, os.environ.get("MINE"), *sys.argv[1:]]
sys.stdout.write(" ".join(map(str, words)) + "\\n")
dist.destroy_process_group()
sys.exit(3 if "fail" in sys.argv else 0)
"""
#: What is written to run a command on another machine, without its variables.
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift 2; done
shift
exec sh -c "$*"
"""
PDSH = f"""#!{sys.executable}
import subprocess, sys
words = sys.argv[sys.argv.index("-w") + 1 :]
bare = ["env", "-i", "PATH=/usr/bin:/bin", "HOME=/nowhere", "OMP_NUM_THREADS=1", "sh", "-c"]
lines = [" ".join(words[1:]).replace("%n", str(rank)) for rank, _ in enumerate(words[0].split(","))]
sys.exit(max(process.wait() for process in [subprocess.Popen([*bare, line]) for line in lines]))
"""
FLAGS = ["--cpu", "--use_deepspeed", "--deepspeed_moe_layer_cls_names", "A,B", "--deepspeed_hostfile", "hosts"]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed is imported three times, one after another."""
    monkeypatch.setattr("tests.launch.conftest.LIMIT", 240)


def ranks(out: str) -> list[str]:
    """Return the lines of the processes, in the order of their ranks."""
    return sorted(line for line in out.splitlines() if line.startswith("rank"))


def meeting() -> list[str]:
    """Return where the processes meet."""
    return ["--main_process_ip", "127.0.0.1", "--main_process_port", str(get_free_port())]


@pytest.mark.parametrize(("arguments", "expected"), [((), 0), (("fail",), 3)])
def test_this_machine_by_itself(launch: Launch, tmp_path: Path, arguments: tuple[str, ...], expected: int) -> None:  # noqa: F811
    (tmp_path / "hosts").write_text("here slots=2\n")
    how = ["--deepspeed_multinode_launcher", "nossh", *meeting()]
    code, out, err = end(launch(SCRIPT, *FLAGS, *how, arguments=arguments))
    assert (code != 0) == (expected != 0), err
    said = " ".join(["3 true A,B None", *arguments])
    assert ranks(out) == [f"rank {rank} of 2 {said}" for rank in range(2)], err


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have two machines, which are this one."""
    (tmp_path / "hosts").write_text("a slots=1\nb slots=1  # the second\n")
    (tmp_path / ".deepspeed_env").write_text("MINE=1\n")
    for name, text in (("ssh", SSH), ("pdsh", PDSH)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_two_machines_by_pdsh(machines: None, launch: Launch, tmp_path: Path) -> None:  # noqa: F811
    arguments = ("--json", '{"a":1}', "a $HOME b")
    code, out, err = end(launch(SCRIPT, *FLAGS, *meeting(), arguments=arguments))
    assert code == 0, err
    assert ranks(out) == [f"rank {rank} of 2 3 true A,B 1 {' '.join(arguments)}" for rank in range(2)], err
    assert (tmp_path / ".deepspeed_env").read_text() == "MINE=1\n"
    assert list(tmp_path.glob("accelerate-*")) == []
