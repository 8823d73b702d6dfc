"""Real launches of small scripts: that they succeed, and what a person sees, gets and is left with when they don't."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.conftest import LIMIT, Launch, end


def wait_for(folder: Path, *names: str) -> None:
    """Return when the files exist."""
    limit = time.monotonic() + LIMIT
    while not all((folder / name).exists() for name in names):
        assert time.monotonic() < limit, f"{names} never came"
        time.sleep(0.02)


TWO = ("--cpu", "--num_processes", "2")
# Each rank says that it is there; FAIL is what rank 1 does, STAY what the others do meanwhile.
RANKS = """
import os, signal, sys, time
from pathlib import Path
rank = os.environ["RANK"]
STAY_BEFORE
Path(f"here-{rank}").touch()
while not (Path("here-0").exists() and Path("here-1").exists()):
    time.sleep(0.01)
if rank == "1":
    FAIL
time.sleep(60)
"""


def ranks(fail: str, before: str = "") -> str:
    """Return a script whose rank 1 does `fail` when both ranks are there."""
    return RANKS.replace("STAY_BEFORE", before).replace("FAIL", fail)


def test_one_process_gets_arguments_variables_and_the_exit_code(launch: Launch) -> None:
    script = "import os, sys; print(sys.argv[1:], os.environ['ACCELERATE_MIXED_PRECISION'], 'RANK' in os.environ)"
    code, out, err = end(launch(script, "--mixed_precision", "bf16", "--num_processes", "1", arguments=("--x", "1")))
    assert (code, out, err) == (0, "['--x', '1'] bf16 False\n", "")


def test_defaults_are_told_in_one_line_and_not_with_quiet(launch: Launch) -> None:
    _, _, err = end(launch("pass"))
    assert err.splitlines() == [
        "accelerate launch: starting 1 process on the CPU, having found no accelerator; "
        "--num_processes, or `accelerate config`, says otherwise"
    ]
    assert end(launch("pass", "--quiet")) == (0, "", "")


@pytest.mark.parametrize(
    ("script", "code", "last"),
    [
        ("raise ValueError('too bad')", 1, "ended with exit code 1"),
        ("import sys; sys.exit(7)", 7, "ended with exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "was killed by signal 9 (SIGKILL)"),
    ],
)
def test_one_process_that_fails(launch: Launch, script: str, code: int, last: str) -> None:
    returned, _, err = end(launch(script, "--num_processes", "1"))
    lines = err.splitlines()
    assert returned == code
    assert lines[-1].startswith(f"accelerate launch: script.py {last}")
    assert err.count("Traceback") == ("raise" in script)


def test_two_processes_talk_to_each_other(launch: Launch) -> None:
    script = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo'); dist.barrier()\n"
        "print('rank', dist.get_rank(), 'of', dist.get_world_size(), flush=True); dist.destroy_process_group()"
    )
    script = f"from accelerate.launchers.worker import set_up\nset_up()\n{script}"
    code, out, err = end(launch(script, *TWO))
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


@pytest.mark.parametrize(
    ("fail", "before", "code", "told"),
    [
        ("raise ValueError('too bad')", "", 1, "ended with exit code 1"),
        ("sys.exit(7)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", 7, "ended with exit code 7"),
        ("os.kill(os.getpid(), 9)", "", 137, "was killed by signal 9 (SIGKILL)"),
    ],
    ids=["raises", "exits, the other ignores SIGTERM", "is killed"],
)
def test_a_rank_that_fails_ends_the_run(
    launch: Launch, tmp_path: Path, fail: str, before: str, code: int, told: str
) -> None:
    process = launch(ranks(fail, before), *TWO)
    wait_for(tmp_path, "here-0", "here-1")
    began = time.monotonic()
    returned, _, err = end(process)
    took = time.monotonic() - began
    assert returned == code
    assert f"rank 1 of 2 on host {socket.gethostname()} (process " in err.splitlines()[-1]
    assert told in err.splitlines()[-1]
    assert "the other process was stopped" in err.splitlines()[-1]
    assert err.count("Traceback") == ("raise" in fail)
    assert took < 20, "the other rank sleeps for 60 seconds, and torch waits for 30"


def test_only_the_first_traceback_is_printed(launch: Launch) -> None:
    before = "from accelerate.launchers.worker import set_up; set_up()"
    peers = (
        "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier()\n"
        "if rank == '0':\n    dist.barrier()\n"
    )
    code, _, err = end(
        launch(ranks("raise ValueError('too bad')", before).replace("if rank ==", f"{peers}if rank ==", 1), *TWO)
    )
    assert code == 1
    assert err.count("Traceback") == 1
    assert "rank 1 of 2" in err.splitlines()[-1]
    assert "ended with exit code 1: ValueError: too bad; the other" in err.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_stop_all_without_noise(launch: Launch, tmp_path: Path, number: signal.Signals) -> None:
    process = launch(ranks("pass"), *TWO)
    wait_for(tmp_path, "here-0", "here-1")
    process.send_signal(number)
    assert end(process) == (128 + number, "", "")


def test_a_rank_can_clean_up_at_ctrl_c(launch: Launch, tmp_path: Path) -> None:
    before = "from accelerate.launchers.worker import set_up; set_up()"
    script = ranks("pass", before).replace(
        "time.sleep(60)", "try: Path(f'in-{rank}').touch(); time.sleep(60)\nfinally: Path(f'clean-{rank}').touch()"
    )
    process = launch(script, *TWO)
    wait_for(tmp_path, "in-0", "in-1")
    process.send_signal(signal.SIGINT)
    assert end(process) == (130, "", "")
    assert sorted(path.name for path in tmp_path.glob("clean-*")) == ["clean-0", "clean-1"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_process_is_stopped_with_the_launcher(launch: Launch, tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import time\ntry: open('here', 'w').close(); time.sleep(60)\nexcept KeyboardInterrupt: raise SystemExit(9)"
    )
    process = launch(script, "--num_processes", "1")
    wait_for(tmp_path, "here")
    process.send_signal(number)
    code, out, err = end(process)
    assert (code, out, err) == (128 + number, "", "")


def test_processes_are_started_again(launch: Launch) -> None:
    script = "import os, sys; sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"
    code, _, err = end(launch(script, *TWO, "--max_restarts", "1"))
    assert code == 0
    assert "ended with exit code 3; starting all again (restart 1 of 1)" in err


def test_a_port_in_use_is_told_with_its_holder(launch: Launch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        code, _, err = end(launch("pass", *TWO, "--main_process_port", str(port)))
    assert code == 2
    assert f"Given: main_process_port {port}\nWhy not: it is held by process {os.getpid()}" in err
    assert "--main_process_port 0" in err


def test_nothing_is_left_in_the_temporary_folder(launch: Launch, tmp_path: Path) -> None:
    end(launch("pass", *TWO))
    assert [path.name for path in tmp_path.glob("*elastic*")] + [
        path.name for path in tmp_path.glob("accelerate-*")
    ] == []


def test_a_dry_run_starts_nothing(launch: Launch) -> None:
    code, out, err = end(launch("print('started')", *TWO, "--dry_run", arguments=("--hub_token", "abc")))
    assert (code, err) == (0, "")
    assert "-m torch.distributed.run --nproc_per_node 2 --standalone script.py --hub_token '***'" in out
    assert "ACCELERATE_USE_CPU=true" in out
    assert "started" not in out


def test_in_a_program_a_failure_is_an_exception(tmp_path: Path) -> None:
    from accelerate.commands.launch import launch_command, launch_command_parser

    (tmp_path / "script.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    line = ["--num_processes", "1", str(tmp_path / "script.py")]
    assert launch_command(launch_command_parser().parse_args([*line, "0"])) is None
    with pytest.raises(subprocess.CalledProcessError) as failed:
        launch_command(launch_command_parser().parse_args([*line, "5"]))
    assert failed.value.returncode == 5
    with pytest.raises(SystemExit) as ended:
        launch_command(launch_command_parser().parse_args(["--quiet", *line, "5"]))
    assert ended.value.code == 5


def test_in_a_program_environment_and_signals_are_put_back(tmp_path: Path) -> None:
    from accelerate.commands.launch import launch_command, launch_command_parser

    (tmp_path / "script.py").write_text("pass")
    before = dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    launch_command(launch_command_parser().parse_args([*TWO, str(tmp_path / "script.py")]))
    after = dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert before == after
