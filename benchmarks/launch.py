"""What `accelerate launch` adds to the time of the script that it starts, and what commands take that start nothing."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.harness import WORKERS, Pairs, Row, Side, Suite, environment, time_command

BARE = "bare Python"
ROWS = {
    "one": Row("`accelerate launch` of a trivial script, 1 process", "`python script.py`", "+0.15 s"),
    "two": Row("`accelerate launch`, 2 gloo processes that meet once", "`torchrun`", "<= +0.1 s"),
    "dry_run": Row("`accelerate launch --dry_run`, 2 processes", BARE, "<= 0.15 s in all, no torch"),
    "config": Row("`accelerate config default`", BARE, "<= 0.15 s in all, no torch"),
    "env": Row("`accelerate env --json` (1.15.0: `accelerate env`)", BARE, "<= 0.15 s in all, no torch"),
    "doctor": Row("`accelerate doctor` without the checks of the network", BARE, "<= 5 s in all"),
    "death": Row("from the death of one of two processes to the end of the launch", "-", "<= 5 s"),
}

# 1.15.0 starts several processes only when it is told that they are GPUs; the script itself uses the CPU either way.
TWO_PROCESSES = {"ours": ["--cpu", "--num_processes", "2"], "1.15.0": ["--multi_gpu", "--num_processes", "2"]}
#: Commands that start nothing; 1.15.0 has no --json, no --dry_run and no doctor.
WITHOUT_NETWORK = [word for name in ("meeting point", "machines", "collective") for word in ("--skip", name)]
COMMANDS = {
    "ours": {
        "env": ["env", "--json"],
        "dry_run": ["launch", *TWO_PROCESSES["ours"], "--dry_run", str(WORKERS / "trivial.py")],
        "doctor": ["doctor", *TWO_PROCESSES["ours"], *WITHOUT_NETWORK],
    },
    "1.15.0": {"env": ["env"]},
}


def time_of_death(command: list[str]) -> float:
    """Return the seconds from the death of a process, which writes down when it dies, to the end of the command."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "died"
        done = subprocess.run(
            [*command, str(written)], env=environment(), capture_output=True, text=True, timeout=300, check=False
        )
        ended = time.time()
        if done.returncode == 0 or not written.exists():
            raise RuntimeError(f"{' '.join(command)} didn't lose a process\n{done.stderr[-4000:]}")
        return ended - float(written.read_text(encoding="utf-8"))


def measure(side: Side) -> dict[str, Pairs]:
    """Run each row once, beside the same script without `accelerate launch`, or beside a bare interpreter."""
    accelerate = str(side.scripts / "accelerate")
    launch = [accelerate, "launch"]
    two = [*launch, *TWO_PROCESSES[side.name], "--main_process_port", "0"]
    trivial, meet = str(WORKERS / "trivial.py"), str(WORKERS / "meet.py")
    torchrun = [side.python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", meet]

    def beside_bare(*command: str) -> Pairs:
        return Pairs([time_command([side.python, "-c", "pass"])], [time_command([accelerate, *command])])

    found = {
        "one": Pairs(
            [time_command([side.python, trivial])],
            [time_command([*launch, "--cpu", "--num_processes", "1", trivial])],
        ),
        "two": Pairs([time_command(torchrun)], [time_command([*two, meet])]),
        "death": Pairs([], [time_of_death([*two, str(WORKERS / "dies.py")])]),
    }
    with tempfile.TemporaryDirectory() as folder:
        found["config"] = beside_bare("config", "default", "--config_file", str(Path(folder) / "new.yaml"))
    return found | {row: beside_bare(*words) for row, words in COMMANDS[side.name].items()}


SUITE = Suite(name="launch", title="Starting a script", rows=ROWS, measure=measure, rounds=9, shows="time")
