"""The processes of a launch: one traceback for all, and whole lines."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelerate.launchers import worker
from accelerate.launchers.run_folder import VARIABLE, Claim, RunFolder


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    """The folder of a launch whose launcher is this process."""
    with RunFolder() as made:
        yield made


def run(script: str, folder: RunFolder | None) -> subprocess.CompletedProcess[str]:
    """Run a script that sets itself up as a worker, unbuffered as torch starts it."""
    env = {**os.environ, **(folder.env if folder else {})}
    code = f"from accelerate.launchers.worker import set_up\nprint(set_up())\n{script}"
    return subprocess.run(
        [sys.executable, "-u", "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_first_to_fail_prints_and_the_others_do_not(folder: RunFolder) -> None:
    first, second = run("raise ValueError('one')", folder), run("raise ValueError('two')", folder)
    assert [first.returncode, second.returncode] == [1, 1]
    assert "ValueError: one" in first.stderr
    assert second.stderr == ""
    claim = folder.claim()
    assert claim is not None
    assert claim.error == "ValueError: one"


def test_ctrl_c_is_silent(folder: RunFolder) -> None:
    done = run("raise KeyboardInterrupt", folder)
    assert (done.stderr, folder.claim()) == ("", None)
    assert done.returncode != 0


def test_stopped_processes_say_nothing(folder: RunFolder) -> None:
    folder.hush()
    assert run("raise ValueError", folder).stderr == ""


def test_a_process_says_when_it_leaves(folder: RunFolder) -> None:
    pid = int(run("import os, sys; print(os.getpid()); sys.exit(3)", folder).stdout.split()[-1])
    assert folder.left(pid) is not None
    assert folder.is_ready(pid)
    assert folder.left(1) is None
    assert not folder.is_ready(1)
    folder.forget()
    assert (folder.left(pid), folder.is_ready(pid)) == (None, False)


def test_without_a_launcher_nothing_changes() -> None:
    done = run("raise ValueError('one')", None)
    assert done.stdout.startswith("False")
    assert "ValueError: one" in done.stderr


def test_what_a_worker_starts_is_not_a_worker(folder: RunFolder) -> None:
    inner = "from accelerate.launchers.worker import set_up; print(set_up()); raise ValueError('mine')"
    done = run(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])", folder)
    assert done.stdout.split() == ["True", "False"]
    assert "ValueError: mine" in done.stderr
    assert folder.claim() is None


def test_when_the_folder_is_gone_the_process_prints(tmp_path: Path) -> None:
    assert worker.claim(tmp_path / "gone", ValueError("one"))


def test_a_half_written_claim_is_none(folder: RunFolder) -> None:
    (folder.path / "first").write_text('{"pid": 1, "err')
    assert folder.claim() is None
    (folder.path / "first").write_text('{"pid": 1, "error": "E"}')
    assert folder.claim() == Claim(1, "E")


def test_the_folder_goes_with_the_launch() -> None:
    with RunFolder() as made:
        path = Path(made.env[VARIABLE])
        assert path.is_dir()
    assert not path.exists()


def test_words_of_a_line_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    class Raw(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            written.append(bytes(data))  # type: ignore[call-overload]
            return len(written[-1])

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Raw(), write_through=True))  # type: ignore[type-var]
    print("rank", 0)
    worker.print_whole_lines()
    print("rank", 1)
    monkeypatch.undo()
    assert written == [b"rank", b" ", b"0", b"\n", b"rank 1\n"]
