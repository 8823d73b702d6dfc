"""Who failed first, by what is known of each process, and how the others are ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from accelerate.launchers.run_folder import FIRST, LEAVING, RunFolder
from accelerate.launchers.watch import Ending, Watch, exit_code

Start = Callable[[str], tuple[subprocess.Popen[bytes], int]]


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    """The folder of a launch."""
    with RunFolder() as made:
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python in sessions of its own, and read the number that it prints, if any."""
    processes = []

    def begin(code: str) -> tuple[subprocess.Popen[bytes], int]:
        process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline() or 0)

    yield begin
    for process in processes:
        process.kill()
        process.wait(30)
        process.stdout.close()


@pytest.mark.parametrize(
    ("endings", "left", "claim", "stopped_at", "root"),
    [
        # rank, code, time of each end; when each said it was leaving; who claimed to be first; when all were stopped
        ([(0, 0, 1.0)], {}, None, None, None),
        ([(0, 1, 2.0), (1, 1, 1.0)], {}, None, 1.0, (1, 1, "")),
        # an exception that takes its time to end the process, while a peer is quick to fail of it
        ([(0, 1, 1.2), (1, 1, 1.4)], {0: 1.1, 1: 1.0}, 1, 1.2, (1, 1, "E")),
        # the same, and the process is told to stop before it has ended
        ([(0, 1, 1.2), (1, -15, 1.3)], {0: 1.1, 1: 1.0}, 1, 1.2, (1, 1, "E")),
        # killed: the peer's exception is known a little earlier than the death
        ([(0, 1, 1.3), (1, -9, 1.05)], {0: 1.0}, 0, 1.05, (1, -9, "")),
        # but a process that the launcher has stopped didn't fail
        ([(0, 1, 1.0), (1, -15, 1.02)], {}, None, 1.0, (0, 1, "")),
        # leaves with a code of its own, without an exception
        ([(0, 1, 1.2), (1, 7, 1.4)], {0: 1.1, 1: 1.0}, 0, 1.2, (1, 7, "")),
        # two leave with a code of their own, and the launcher ends the slower one, which was the first to leave
        ([(0, 75, 1.2), (1, -9, 6.0)], {0: 1.1, 1: 1.0}, None, 1.2, (0, 75, "")),
    ],
)
def test_the_first_failure(folder: RunFolder, endings, left, claim, stopped_at, root) -> None:
    watch = Watch({}, folder)
    watch.endings = [Ending(rank, 100 + rank, code, when) for rank, code, when in endings]
    watch.stopped_at = stopped_at
    for rank, when in left.items():
        (folder.path / f"{LEAVING}{100 + rank}").write_text(str(when))
    if claim is not None:
        (folder.path / FIRST).write_text(f'{{"pid": {100 + claim}, "error": "E"}}')
    found = watch.root()
    assert (found and (found.rank, found.code, found.error)) == root


@pytest.mark.parametrize(
    ("ending", "text", "code"),
    [
        (Ending(0, 1, 3), "ended with exit code 3", 3),
        (Ending(0, 1, 1, error="ValueError: no"), "ended with exit code 1: ValueError: no", 1),
        (Ending(0, 1, -11), "was killed by signal 11 (SIGSEGV)", 139),
        (Ending(0, 1, -9), "was killed by signal 9 (SIGKILL), as the system does when memory runs out", 137),
        (Ending(0, 1, -99), "was killed by signal 99 (unknown)", 227),
    ],
)
def test_how_an_ending_reads(ending: Ending, text: str, code: int) -> None:
    assert (str(ending), ending.exit_code) == (text, code)


def test_codes_are_those_of_a_shell() -> None:
    assert [exit_code(code) for code in (0, 7, -2, -15)] == [0, 7, 130, 143]


def test_a_failure_stops_the_others_at_once(folder: RunFolder, start: Start) -> None:
    stays, fails = (
        start("import time; print(0, flush=True); time.sleep(60)")[0],
        start("print(0); raise SystemExit(4)")[0],
    )
    watch = Watch({0: stays, 1: fails}, folder)
    for thread in watch._threads:
        thread.join(30)
    root = watch.root()
    assert root is not None
    assert (root.rank, root.code) == (1, 4)
    assert stays.returncode == -signal.SIGTERM


def test_who_does_not_want_to_end_is_killed_with_its_children(folder: RunFolder, start: Start) -> None:
    process, child = start(
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(60)"
    )
    Watch({0: process}, folder).stop(signal.SIGTERM, grace=0.2)
    assert process.returncode == -signal.SIGKILL
    assert wait_until_gone(child)


def test_what_a_process_leaves_running_stays_when_all_ended_well(folder: RunFolder, start: Start) -> None:
    process, child = start(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdout=subprocess.DEVNULL)\n"
        "print(child.pid)"
    )
    watch = Watch({0: process}, folder)
    process.wait(30)
    watch.stop(None, grace=0.2)
    assert psutil.Process(child).status() != psutil.STATUS_ZOMBIE
    psutil.Process(child).kill()


def test_ctrl_c_reaches_only_those_who_take_it_quietly(folder: RunFolder, start: Start) -> None:
    code = "import time\ntry:\n print(0, flush=True); time.sleep(60)\nexcept KeyboardInterrupt: raise SystemExit(5)"
    quiet, other = start(code)[0], start(code)[0]
    (folder.path / f"ready-{quiet.pid}").touch()
    Watch({0: quiet, 1: other}, folder).stop(signal.SIGINT, grace=30)
    assert [quiet.returncode, other.returncode] == [5, -signal.SIGTERM]


def wait_until_gone(pid: int) -> bool:
    """Return whether a process ends within a while."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False
