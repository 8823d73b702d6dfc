"""Jobs on a real SLURM of one machine: two tasks become two processes, by srun and by submission."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelerate.base.ports import get_free_port

LIMIT = 120
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None and not Path("/usr/sbin", name).exists()]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"SLURM isn't installed ({', '.join(MISSING)})"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start the daemons of SLURM"),
    pytest.mark.timeout(300),
]

CONF = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
NodeName={host} CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""
TRAIN = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
accelerator.print("ranks", ranks, "local", accelerator.local_process_index)
accelerator.end_training()
"""


def start(name: str, *flags: str, folder: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a daemon in the foreground, its log beside the others."""
    program = shutil.which(name) or f"/usr/sbin/{name}"
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([program, *flags], env=env, stdout=log, stderr=log)


def wait_for(what: str, holds) -> None:
    """Wait until something holds, and fail when it takes too long."""
    until = time.monotonic() + 60
    while not holds():
        if time.monotonic() > until:
            pytest.fail(f"{what}: not within a minute")
        time.sleep(0.2)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """Return the folder of a SLURM that runs on this machine, and the variables of its clients."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    ports = {"controller": get_free_port(), "daemon": get_free_port()}
    cores = max(os.cpu_count() or 1, 1)
    (folder / "slurm.conf").write_text(CONF.format(host=host, folder=folder, cores=cores, **ports))
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons = [
        start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/seed", f"--log-file={folder}/munged.own.log",
            folder=folder, env=env,
        )
    ]  # fmt: skip
    try:
        wait_for("the socket of munged", (folder / "munge.socket").exists)
        daemons.append(start("slurmctld", "-D", folder=folder, env=env))
        daemons.append(start("slurmd", "-D", "-N", host, folder=folder, env=env))

        def idle() -> bool:
            done = subprocess.run(["sinfo", "-h", "-o", "%t"], env=env, capture_output=True, text=True, check=False)
            return "idle" in done.stdout

        wait_for(f"an idle node (logs are in {folder})", idle)
        yield folder, env
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=30)


def run(words: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.parametrize(
    ("tasks", "flags", "local"),
    [
        (["-n", "2"], ["-m", "accelerate.commands.launch", "--cpu"], 0),  # each task is a process
        (["-n", "2"], [], 0),  # without the launcher
        (["-n", "1", "-c", "2"], ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"], 0),
    ],
)
def test_two_processes_meet_without_being_told_where(slurm, tasks, flags, local):
    folder, env = slurm
    (folder / "train.py").write_text(TRAIN)
    done = run(["srun", "--overcommit", *tasks, sys.executable, *flags, "train.py"], folder, env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"ranks [0, 1] local {local}\n"


def test_a_submitted_job_runs(slurm):
    folder, env = slurm
    (folder / "train.py").write_text(TRAIN)
    flags = ["--submit", "slurm", "--cpu", "--num_processes", "2", "train.py"]
    done = run([sys.executable, "-m", "accelerate.commands.launch", *flags], folder, env)
    assert done.returncode == 0, done.stderr
    job = done.stderr.partition("submitted job ")[2].partition(";")[0]
    assert (folder / f"train-{job}.sbatch").is_file()
    output = folder / f"slurm-{job}.out"
    wait_for("the output of the job", lambda: output.is_file() and "ranks" in output.read_text())
    assert "ranks [0, 1] local 0\n" in output.read_text()
    wait_for("the end of the job", lambda: run(["squeue", "-h", "-j", job], folder, env).stdout.strip() == "")
