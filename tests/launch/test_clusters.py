"""Plans for machines that a scheduler or mpirun looks after, and a run that mpirun really starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from accelerate.base.ports import get_free_port
from accelerate.launchers import mpirun, submit
from tests.launch.conftest import end
from tests.launch.plans import CPU, FOUR_GPUS, SCRIPT, plan_of

TWO_NODES = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_NODEID": "1",
}
NODE_TASK = {**TWO_NODES, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1"}
RANK_TASK = {
    **TWO_NODES,
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_CPUS_PER_TASK": "6",
}
PORT = str(15000 + 773)


def words(plan) -> str:
    return " ".join(plan.argv[1:]).replace(SCRIPT, "SCRIPT")


@pytest.fixture
def hosts(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("hosts")
    path.write_text("# two machines\nnode1 slots=2\n\nnode2:2  # the second\n")
    return path


@pytest.mark.parametrize(
    ("flavour", "expected"),
    [
        (
            ("mpirun", "openmpi"),
            "--hostfile hosts -n 4 --npernode 2 --bind-to socket -x ACCELERATE_USE_CPU=true -x MASTER_ADDR=node1 "
            "-x MASTER_PORT=29500 -x OMP_NUM_THREADS=2",
        ),
        (
            ("mpiexec", "hydra"),
            "-f hosts -n 4 -ppn 2 -genv ACCELERATE_USE_CPU true -genv MASTER_ADDR node1 -genv MASTER_PORT 29500 "
            "-genv OMP_NUM_THREADS 2",
        ),
    ],
)
@pytest.mark.parametrize(
    ("line", "config"),
    [
        ("--cpu --num_processes 4 --mpirun_hostfile hosts SCRIPT --lr 1", ""),
        ("SCRIPT --lr 1", "{distributed_type: MULTI_CPU, num_processes: 4, mpirun_config: {mpirun_hostfile: hosts}}"),
    ],
)
def test_mpirun_gets_the_machines_and_the_variables(monkeypatch, hosts, flavour, expected, line, config):
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: flavour)
    plan = plan_of(line, config)
    assert plan.argv[0] == flavour[0]
    assert words(plan) == f"{expected} {sys.executable} SCRIPT --lr 1"
    assert (plan.launcher, plan.num_processes, plan.address, plan.port) == ("mpirun", 4, "node1", 29500)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("node1\nnode 2 3\n", r"line 2 of hosts: node 2 3(.|\n)*names no machine"),
        ("# nothing\n", r"no line with a machine"),
        ("node1 slots=1\nnode2:2\n", r"4 processes on the machines in hosts(.|\n)*add up to 3(.|\n)*--num_processes 3"),
    ],
)
def test_hostfiles_that_are_refused(monkeypatch, hosts, content, said):
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: ("mpirun", "openmpi"))
    hosts.write_text(content)
    with pytest.raises(ValueError, match=said):
        plan_of("--cpu --num_processes 4 --mpirun_hostfile hosts SCRIPT")


def test_a_hostfile_or_a_program_that_is_missing(monkeypatch, hosts):
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        plan_of("--cpu --num_processes 4 --mpirun_hostfile host SCRIPT")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    mpirun.find_mpirun.cache_clear()
    with pytest.raises(FileNotFoundError, match=r"neither mpirun nor mpiexec(.|\n)*apt install openmpi-bin"):
        plan_of("--cpu --num_processes 4 --mpirun_hostfile hosts SCRIPT")


@pytest.mark.parametrize(
    ("told", "flavour"),
    [("mpirun (Open MPI) 4.1.4", "openmpi"), ("HYDRA build details", "hydra"), ("Intel(R)", "hydra")],
)
def test_the_kind_of_mpirun_is_asked(monkeypatch, told, flavour):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: subprocess.CompletedProcess([], 0, stdout=told))
    mpirun.find_mpirun.cache_clear()
    assert mpirun.find_mpirun() == ("mpirun", flavour)
    mpirun.find_mpirun.cache_clear()


def test_a_task_on_each_machine_starts_the_processes_of_that_machine():
    expected = "-m torch.distributed.run --nproc_per_node 4 --nnodes 2 --node_rank 1 --master_addr gpu03 --master_port"
    for config in ("", "{distributed_type: MULTI_GPU, num_processes: 8, num_machines: 1, machine_rank: 0}"):
        plan = plan_of("SCRIPT", config, FOUR_GPUS, NODE_TASK)
        assert words(plan) == f"{expected} {PORT} SCRIPT"
        assert (plan.launcher, plan.num_processes, plan.num_machines) == ("torchrun", 8, 2)
    said = plan_of("--main_process_port 7 --num_processes 4 SCRIPT", "", FOUR_GPUS, NODE_TASK)
    assert words(said) == f"{expected} 7 SCRIPT".replace("node 4", "node 2")


def test_several_tasks_on_a_machine_are_one_process_each():
    plan = plan_of("SCRIPT --lr 1", "", CPU, RANK_TASK)
    assert (plan.launcher, words(plan)) == ("slurm", "SCRIPT --lr 1")
    assert plan.env == {
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "6",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "gpu03",
        "MASTER_PORT": PORT,
    }
    assert plan_of("--num_cpu_threads_per_process 3 SCRIPT", "", CPU, RANK_TASK).env["OMP_NUM_THREADS"] == "3"
    with pytest.raises(ValueError, match=r"--num_processes 2 in a job step of 4 tasks(.|\n)*leave the number out"):
        plan_of("--num_processes 2 SCRIPT", "", CPU, RANK_TASK)


@pytest.mark.parametrize("environ", [{"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, {}])
def test_a_batch_script_itself_is_no_task(environ):
    assert plan_of("SCRIPT", environ=environ).launcher == "single"


def test_a_job_repeats_what_was_typed_and_leaves_to_slurm_what_it_knows(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    line = (
        "--submit slurm --num_machines 2 --num_processes 8 --mixed_precision bf16 --use_fsdp --no_debug "
        "--fsdp_version 2 --main_process_ip x SCRIPT --lr 1"
    )
    plan = plan_of(line, "{distributed_type: MULTI_GPU, num_processes: 4}", FOUR_GPUS)
    assert plan.argv == ("sbatch", "--parsable")
    assert plan.stdin.splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=plans",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=4",
        "",
        f"cd {tmp_path}",
        f"srun {sys.executable} -m accelerate.commands.launch --config_file {tmp_path}/c.yaml --num_processes 8 "
        f"--mixed_precision bf16 --no_debug --fsdp_version 2 --use_fsdp {SCRIPT} --lr 1",
    ]
    assert "it reads:\n  #!/bin/bash\n  #SBATCH --job-name=plans" in str(plan)


def test_more_can_be_asked_of_the_batch_system(launch):
    code, out, err = end(launch("", "--cpu", "--submit", "slurm", "--submit_args", "-p long --time=1:00", "--dry_run"))
    assert code == 0, err
    assert "#SBATCH -p long\n  #SBATCH --time=1:00\n" in out
    assert "gpus-per-node" not in out


def test_a_submitted_job_is_kept_and_named(monkeypatch, tmp_path, capsys):
    program = tmp_path / "sbatch"
    program.write_text("#!/bin/sh\ncat > read; echo '42;cluster'\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    plan = plan_of("--cpu --submit slurm SCRIPT")
    assert submit.SubmitLauncher().run(plan) == 0
    assert Path("read").read_text() == Path("plans-42.sbatch").read_text() == plan.stdin
    assert "submitted job 42; its script is plans-42.sbatch" in capsys.readouterr().err
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no `sbatch` on the PATH(.|\n)*--dry_run"):
        submit.SubmitLauncher().run(plan)


@pytest.fixture
def as_root(monkeypatch):
    """Let Open MPI run as root, as in a container, and on fewer cores than processes."""
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"):
        monkeypatch.setenv(name, "1")


RANKS = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
accelerator.print("ranks", ranks, accelerator.mixed_precision)
accelerator.end_training()
"""


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun on this machine")
def test_mpirun_starts_two_processes(as_root, launch, tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    flags = ["--cpu", "--num_processes", "2", "--mixed_precision", "bf16", "--mpirun_hostfile", "hosts"]
    process = launch(RANKS, *flags, "--main_process_port", str(get_free_port()))
    code, out, err = end(process)
    assert (code, out) == (0, "ranks [0, 1] bf16\n"), err
