"""Golden: how a run with DeepSpeed is started, by torch's launcher or by DeepSpeed's own, and what it is told."""

from __future__ import annotations

import dataclasses
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from accelerate.base.environ import convert_dict_to_env_variables
from accelerate.launchers import deepspeed_file
from accelerate.launchers.deepspeed import DeepSpeedLauncher
from accelerate.launchers.hardware import Hardware
from accelerate.launchers.registry import select
from tests.launch.plans import CPU, FOUR_GPUS, ONE_GPU, SCRIPT, plan_of, settings_of
from tests.launch.test_clusters import NODE_TASK, RANK_TASK

RUN = "-m torch.distributed.run --nproc_per_node"
RUNNER = "-m deepspeed.launcher.runner --hostfile hosts --no_local_rank"
MEETING = "--master_addr h0 --master_port 7777"
HOSTFILE = "--use_deepspeed --deepspeed_hostfile hosts"
MANY = "--use_deepspeed --num_machines 2 --main_process_ip h0 --main_process_port 7777"
BY_CONFIG = "{distributed_type: DEEPSPEED, num_processes: 4}"
WRITTEN_BY_1_15 = """
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_hostfile: hosts
  deepspeed_inclusion_filter: node1@node2:0,1,2,3
  deepspeed_moe_layer_cls_names: A,B
  deepspeed_multinode_launcher: pdsh
  gradient_accumulation_steps: 2
  gradient_clipping: 1.0
  offload_optimizer_device: nvme
  offload_optimizer_nvme_path: /local/nvme
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
enable_cpu_affinity: false
machine_rank: 0
main_process_ip: h0
main_process_port: 7777
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
OF_1_15 = {
    "ACCELERATE_CONFIG_DS_FIELDS": "deepspeed_hostfile,deepspeed_inclusion_filter,deepspeed_moe_layer_cls_names,"
    "deepspeed_multinode_launcher,gradient_accumulation_steps,gradient_clipping,mixed_precision,"
    "offload_optimizer_device,offload_optimizer_nvme_path,offload_param_device,zero3_init_flag,"
    "zero3_save_16bit_model,zero_stage",
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": "A,B",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "nvme",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH": "/local/nvme",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2",
    "ACCELERATE_GRADIENT_CLIPPING": "1.0",
    "ACCELERATE_MIXED_PRECISION": "bf16",
}
#: What a launch hands on that is not about DeepSpeed, or the same every time.
BESIDE = (
    "OMP_NUM_THREADS",
    "ACCELERATE_CPU_AFFINITY",
    "ACCELERATE_DEBUG_MODE",
    "ACCELERATE_DOWNCAST_BF16",
    "PYTHONPATH",
)


@pytest.fixture(autouse=True)
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = Path("hosts")
    path.write_text("# two machines\nnode1 slots=4\n\nnode2 slots=4  # the second\n")
    return path


def words(line: str, config: str = "", hardware: Hardware = CPU, environ: dict[str, str] | None = None) -> str:
    return " ".join(plan_of(line, config, hardware, environ).argv[1:]).replace(SCRIPT, "SCRIPT")


ROWS = {
    "one machine, all devices": ("--use_deepspeed SCRIPT --lr 1", "", FOUR_GPUS, f"{RUN} 4 --standalone SCRIPT --lr 1"),
    "one process": ("--use_deepspeed SCRIPT", "", ONE_GPU, f"{RUN} 1 --standalone SCRIPT"),
    "on the CPU": ("--cpu --use_deepspeed --num_processes 2 SCRIPT", "", FOUR_GPUS, f"{RUN} 2 --standalone SCRIPT"),
    "by config": (
        "SCRIPT",
        BY_CONFIG,
        FOUR_GPUS,
        f"{RUN} 4 --standalone SCRIPT",
    ),
    "a module": ("--use_deepspeed -m package.train", "", FOUR_GPUS, f"{RUN} 4 --standalone --module package.train"),
    "standard": (
        f"{MANY} --deepspeed_multinode_launcher standard --machine_rank 1 --num_processes 8 SCRIPT",
        "",
        FOUR_GPUS,
        f"{RUN} 4 --nnodes 2 --node_rank 1 --master_addr h0 --master_port 7777 SCRIPT",
    ),
    **{
        how: (
            f"{MANY} --deepspeed_multinode_launcher {how} --deepspeed_hostfile hosts --num_processes 8 SCRIPT --lr 1",
            "",
            CPU,
            f"{RUNNER} --launcher {how} {MEETING} SCRIPT --lr 1",
        )
        for how in ("pdsh", "openmpi", "mvapich", "mpich", "impi", "slurm")
    },
    "nossh": (
        f"{MANY} --deepspeed_multinode_launcher nossh --deepspeed_hostfile hosts --machine_rank 1 SCRIPT",
        "",
        FOUR_GPUS,
        f"{RUNNER} --no_ssh --node_rank 1 {MEETING} SCRIPT",
    ),
    "a hostfile alone": (
        "--use_deepspeed --deepspeed_hostfile hosts SCRIPT",
        "",
        CPU,
        f"{RUNNER} --launcher pdsh --master_port 29500 SCRIPT",
    ),
    "fewer processes": (
        f"{MANY} --deepspeed_hostfile hosts --num_processes 4 SCRIPT",
        "",
        CPU,
        f"{RUNNER} --launcher pdsh --num_gpus 2 {MEETING} SCRIPT",
    ),
    "some machines": (
        "--use_deepspeed --deepspeed_hostfile hosts --deepspeed_inclusion_filter node2:0,2 SCRIPT",
        "",
        CPU,
        f"{RUNNER} --launcher pdsh --include node2:0,2 --master_port 29500 SCRIPT",
    ),
    "all but some, a module": (
        f"{HOSTFILE} --deepspeed_exclusion_filter node1 --num_processes 4 -m package.train x",
        "",
        CPU,
        f"{RUNNER} --launcher pdsh --exclude node1 --master_port 29500 --module package.train x",
    ),
    "a config of 1.15": (
        "SCRIPT",
        WRITTEN_BY_1_15,
        CPU,
        f"{RUNNER} --launcher pdsh --include node1@node2:0,1,2,3 {MEETING} SCRIPT",
    ),
}


@pytest.mark.parametrize(("line", "config", "hardware", "expected"), ROWS.values(), ids=ROWS.keys())
def test_command(line: str, config: str, hardware: Hardware, expected: str) -> None:
    plan = plan_of(line, config, hardware)
    assert plan.argv[0] == sys.executable
    assert words(line, config, hardware) == expected
    assert plan.env["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert (plan.launcher, select(settings_of(line, config, hardware)).name) == (plan.launcher,) * 2


@pytest.mark.parametrize(
    ("line", "config", "hardware", "variables"),
    [
        ("--use_deepspeed SCRIPT", "", FOUR_GPUS, {}),
        (
            "--use_deepspeed --cpu --num_processes 2 --zero_stage 1 SCRIPT",
            "",
            FOUR_GPUS,
            {"ACCELERATE_USE_CPU": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1", "DS_ACCELERATOR": "cpu"},
        ),
        ("SCRIPT", WRITTEN_BY_1_15, CPU, {**OF_1_15, "ACCELERATE_USE_CPU": "false"}),
        (
            "--use_deepspeed --mixed_precision fp16 --deepspeed_config_file hosts.json SCRIPT",
            "",
            FOUR_GPUS,
            {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "hosts.json", "ACCELERATE_MIXED_PRECISION": "fp16"},
        ),
        (
            "--zero3_init_flag False SCRIPT",
            "{distributed_type: DEEPSPEED, deepspeed_config: {zero_stage: 2}}",
            FOUR_GPUS,
            {
                "ACCELERATE_CONFIG_DS_FIELDS": "zero_stage",
                "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
                "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
            },
        ),
    ],
)
def test_variables(line: str, config: str, hardware: Hardware, variables: dict[str, str]) -> None:
    Path("hosts.json").write_text('{"zero_optimization": {"stage": 2}}')
    env = plan_of(line, config, hardware).env
    told = {name: value for name, value in env.items() if name not in BESIDE}
    assert told == {"ACCELERATE_USE_DEEPSPEED": "true", **variables}


def test_modules_beside_the_present_folder_are_found(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": f"/mine:{tmp_path}"}
    assert plan_of("--use_deepspeed SCRIPT", "", ONE_GPU, environ).env["PYTHONPATH"] == f"/mine:{tmp_path}"
    assert plan_of("--use_deepspeed SCRIPT", "", ONE_GPU).env["PYTHONPATH"] == str(tmp_path)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("--use_fsdp SCRIPT", ("false", "true")),
        ("--multi_gpu SCRIPT", ("false", "false")),
        ("--no_use_deepspeed SCRIPT", ("false", "false")),
        ("--cpu --num_processes 2 SCRIPT", ("true", "false")),
    ],
)
def test_flags_decide_of_which_kind_a_run_is(line: str, kind: tuple[str, str]) -> None:
    env = plan_of(line, BY_CONFIG, FOUR_GPUS).env
    assert tuple(env.get(f"ACCELERATE_USE_{name}", "false") for name in ("DEEPSPEED", "FSDP")) == kind


def test_what_slurm_has_started_on_each_machine_is_torchs_business() -> None:
    assert words("--use_deepspeed SCRIPT", "", FOUR_GPUS, NODE_TASK).startswith(f"{RUN} 4 --nnodes 2 --node_rank 1")
    plan = plan_of("--use_deepspeed SCRIPT", "", CPU, RANK_TASK)
    assert (plan.launcher, plan.env["ACCELERATE_USE_DEEPSPEED"], plan.env["RANK"]) == ("slurm", "true", "3")


@pytest.mark.parametrize("argument", ['{"a":1}', "$HOME", "a b", 'say "$HOME" `x` \\ y', "it's", "", "a;b", "*"])
def test_arguments_of_the_script_arrive_through_the_shells_of_pdsh(argument: str) -> None:
    settings = settings_of(f"{HOSTFILE} SCRIPT")
    plan = DeepSpeedLauncher().plan(dataclasses.replace(settings, arguments=(argument,)))
    word = plan.argv[-1]
    typed = '"{}"'.format(word.replace('"', '\\"')) if " " in word else word  # what DeepSpeed makes of it
    shown = subprocess.run(["sh", "-c", f"printf %s {typed}"], capture_output=True, text=True, timeout=20, check=True)
    assert shown.stdout == argument
    one = f"{HOSTFILE} --deepspeed_inclusion_filter node1 SCRIPT"
    alone = DeepSpeedLauncher().plan(dataclasses.replace(settings_of(one), arguments=(argument,)))
    assert alone.argv[-1] == argument


def test_what_a_plan_says_about_the_run() -> None:
    plan = plan_of("--use_deepspeed --deepspeed_hostfile hosts SCRIPT")
    facts = (plan.num_processes, plan.num_machines, plan.machine_rank, plan.address, plan.port)
    assert facts == (8, 2, 0, "node1", 29500)
    plan = plan_of(f"{MANY} --deepspeed_hostfile hosts --num_processes 2 --deepspeed_multinode_launcher nossh SCRIPT")
    assert (plan.num_processes, plan.num_machines, plan.address, plan.port) == (2, 2, "h0", 7777)


def test_settings_of_the_library_go_with_the_run_and_other_variables_stay() -> None:
    environ = {
        "ACCELERATE_LOG_LEVEL": "info", "FSDP_VERSION": "2", "HF_TOKEN": "x", "ACCELERATE_RUN_FOLDER": "/x",
    }  # fmt: skip
    env = plan_of("--use_deepspeed --deepspeed_hostfile hosts --zero_stage 2 SCRIPT", "", CPU, environ).env
    assert {name for name in env if name != "PYTHONPATH"} == {
        "ACCELERATE_DEEPSPEED_ZERO_STAGE", "ACCELERATE_LOG_LEVEL", "ACCELERATE_USE_DEEPSPEED", "FSDP_VERSION",
    }  # fmt: skip


def test_the_file_for_other_machines_is_private_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".deepspeed_env").write_text("MINE=1\nZERO=old\n")
    (tmp_path / ".deepspeed_env").write_text("HERE=2\n")
    seen = []

    def run(plan: object) -> int:
        path = Path(plan.env["DS_ENV_FILE"])
        seen.append((path, path.read_text(), stat.S_IMODE(path.stat().st_mode)))
        return 3

    monkeypatch.setattr("accelerate.launchers.alone.run", run)
    plan = plan_of("--use_deepspeed --deepspeed_hostfile hosts --zero_stage 2 SCRIPT")
    assert DeepSpeedLauncher().run(plan) == 3
    ((path, text, mode),) = seen
    assert text == "MINE=1\nZERO=old\nHERE=2\n" + "".join(convert_dict_to_env_variables(plan.env))
    assert "ACCELERATE_DEEPSPEED_ZERO_STAGE=2\n" in text
    assert mode == 0o600
    assert not path.exists()
    assert (home / ".deepspeed_env").read_text() == "MINE=1\nZERO=old\n"


def test_a_machine_that_is_started_by_itself_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    monkeypatch.setattr("accelerate.launchers.alone.run", lambda plan: plans.append(plan) or 0)
    plan = plan_of(f"{MANY} --deepspeed_hostfile hosts --deepspeed_multinode_launcher nossh SCRIPT")
    assert DeepSpeedLauncher().run(plan) == 0
    assert plans == [plan]
    assert deepspeed_file.DS_ENV_FILE not in plan.env
