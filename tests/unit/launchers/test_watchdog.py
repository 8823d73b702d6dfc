"""What counts as a hang, and what is said about it."""

from __future__ import annotations

import json
import sys
import threading
import time

import pytest

from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.run_folder import FIRST, LEAVING, READY, STALLED, RunFolder
from accelerate.launchers.stall import collective, frames, watch_main_thread
from accelerate.launchers.watchdog import Stall, print_report, standing_still, watchdog


@pytest.fixture
def folder():
    with RunFolder() as found:
        yield found


def stalled(rank: int) -> str:
    return json.dumps({"rank": rank, "since": 1.0, "collective": None, "stack": ""})


def test_a_hang_is_when_no_process_that_still_runs_moves(folder):
    assert standing_still(folder) == []
    for pid in (11, 12, 13):
        (folder.path / f"{READY}{pid}").touch()
    (folder.path / f"{STALLED}11").write_text(stalled(1))
    assert standing_still(folder) == []
    (folder.path / f"{STALLED}12").write_text(stalled(0))
    assert standing_still(folder) == []
    (folder.path / f"{LEAVING}13").touch()
    assert [stall.rank for stall in standing_still(folder)] == [0, 1]
    folder.hush()
    assert standing_still(folder) == []
    (folder.path / FIRST).unlink()
    (folder.path / f"{STALLED}12").write_text("{half")
    assert standing_still(folder) == []
    folder.forget()
    assert list(folder.path.iterdir()) == []


def test_a_main_thread_that_stands_still_says_so_and_takes_it_back(folder):
    thread = watch_main_thread(folder.path, 0.2)
    for _ in range(2):
        until = time.monotonic() + 20
        while not list(folder.path.glob(f"{STALLED}*")) and time.monotonic() < until:
            time.sleep(2.0)  # one instruction for long
        (path,) = folder.path.glob(f"{STALLED}*")
        told = json.loads(path.read_text())
        assert "time.sleep(2.0)" in told["stack"]
        while path.exists() and time.monotonic() < until:
            sum(range(1000))
        assert not path.exists()
    folder.__exit__(None, None, None)
    thread.join(20)
    assert not thread.is_alive()


def test_a_stack_names_its_collective():
    code = {"barrier": "sys._getframe()", "gather": "barrier()"}
    names: dict[str, object] = {"sys": sys}
    for name, body in code.items():
        exec(compile(f"def {name}():\n    return {body}", "/torch/distributed/distributed_c10d.py", "exec"), names)
    exec(compile("def mine():\n    return gather()", "/home/train.py", "exec"), names)
    frame = names["mine"]()
    assert collective(frame) == "gather"
    assert collective(next(one for one in frames(frame) if one.f_code.co_name == "mine")) is None


def test_the_report(capsys):
    print_report([Stall(0, 1.0, "all_reduce", "a\n"), Stall(1, 1.0, None, "b\n")], 30.0)
    assert capsys.readouterr().err.splitlines() == [
        "accelerate launch: no process has moved for 30 s; the run goes on, Ctrl-C ends it",
        "  rank 0 waits in all_reduce",
        "  rank 1 waits outside of collectives",
        "rank 0 stands at (most recent call last):",
        "a",
        "rank 1 stands at (most recent call last):",
        "b",
    ]


def test_nobody_looks_unless_asked_to(folder):
    with watchdog(LaunchPlan("single", ()), folder):
        assert not [thread for thread in threading.enumerate() if "watchdog" in thread.name]
