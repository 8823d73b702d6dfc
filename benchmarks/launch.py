"""What `accelerate launch` adds to the time of the script that it starts."""

from __future__ import annotations

from benchmarks.harness import WORKERS, Pairs, Row, Side, Suite, time_command

ROWS = {
    "one": Row("`accelerate launch` of a trivial script, 1 process", "`python script.py`", "+0.15 s"),
    "two": Row("`accelerate launch`, 2 gloo processes that meet once", "`torchrun`", "<= +0.1 s"),
}

# 1.15.0 starts several processes only when it is told that they are GPUs; the script itself uses the CPU either way.
TWO_PROCESSES = {"ours": ["--cpu", "--num_processes", "2"], "1.15.0": ["--multi_gpu", "--num_processes", "2"]}


def measure(side: Side) -> dict[str, Pairs]:
    """Run each row once, beside the same script without `accelerate launch`."""
    launch = [str(side.scripts / "accelerate"), "launch"]
    trivial, meet = str(WORKERS / "trivial.py"), str(WORKERS / "meet.py")
    torchrun = [side.python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", meet]
    return {
        "one": Pairs(
            [time_command([side.python, trivial])],
            [time_command([*launch, "--cpu", "--num_processes", "1", trivial])],
        ),
        "two": Pairs(
            [time_command(torchrun)],
            [time_command([*launch, *TWO_PROCESSES[side.name], "--main_process_port", "0", meet])],
        ),
    }


SUITE = Suite(name="launch", title="Starting a script", rows=ROWS, measure=measure, rounds=9, shows="time")
