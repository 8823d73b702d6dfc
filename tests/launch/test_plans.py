"""Golden: a config file and a command line, on a machine with this hardware, give this plan.

A row says what is typed and written, and what comes of it: the command (without its Python) and the variables.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import pytest

from accelerate.launchers.hardware import Hardware
from tests.launch.plans import CPU, FOUR_GPUS, ONE_GPU, SCRIPT, plan_of


@dataclass(frozen=True)
class Row:
    """One launch: what is given, and the plan."""

    line: str
    command: str
    env: dict[str, str] = field(default_factory=dict)
    config: str = ""
    hardware: Hardware = CPU
    environ: dict[str, str] = field(default_factory=dict)


MULTI_GPU = "{compute_environment: LOCAL_MACHINE, distributed_type: MULTI_GPU, num_processes: 4, mixed_precision: fp16}"
MULTI_CPU = "{distributed_type: MULTI_CPU, num_processes: 2}"
WRITTEN_BY_1_15 = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: 'NO'
downcast_bf16: 'no'
enable_cpu_affinity: false
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 1
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
RUN = "-m torch.distributed.run --nproc_per_node"

ROWS = {
    "nothing said, CPU": Row("SCRIPT", "SCRIPT", {"OMP_NUM_THREADS": "8"}),
    "nothing said, one GPU": Row("SCRIPT", "SCRIPT", {"OMP_NUM_THREADS": "1"}, hardware=ONE_GPU),
    "nothing said, four GPUs": Row(
        "SCRIPT --lr 1", f"{RUN} 4 --standalone SCRIPT --lr 1", {"OMP_NUM_THREADS": "1"}, hardware=FOUR_GPUS
    ),
    "nothing said, an Apple GPU": Row("SCRIPT", "SCRIPT", {"OMP_NUM_THREADS": "1"}, hardware=Hardware("mps", 1)),
    "two on the CPU": Row(
        "--cpu --num_processes 2 SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "4"},
        hardware=FOUR_GPUS,
    ),
    "two where there is only the CPU": Row(
        "--num_processes 2 SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "4"},
    ),
    "the CPU, alone": Row("--cpu SCRIPT", "SCRIPT", {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "8"}),
    "the CPU, by environment": Row(
        "--num_processes 2 SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "4"},
        hardware=ONE_GPU,
        environ={"ACCELERATE_USE_CPU": "1"},
    ),
    "the CPU, by config": Row(
        "SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "4"},
        config=MULTI_CPU,
        hardware=FOUR_GPUS,
    ),
    "more processes than cores": Row(
        "--cpu --num_processes 16 SCRIPT",
        f"{RUN} 16 --standalone SCRIPT",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
    ),
    "threads, by flag": Row(
        "--num_cpu_threads_per_process 3 SCRIPT",
        "SCRIPT",
        {"OMP_NUM_THREADS": "3"},
        environ={"OMP_NUM_THREADS": "5"},
    ),
    "threads, by environment": Row("SCRIPT", "SCRIPT", environ={"OMP_NUM_THREADS": "5"}),
    "config alone": Row(
        "SCRIPT",
        f"{RUN} 4 --standalone SCRIPT",
        {"ACCELERATE_MIXED_PRECISION": "fp16", "OMP_NUM_THREADS": "1"},
        config=MULTI_GPU,
        hardware=FOUR_GPUS,
    ),
    "flags over config": Row(
        "--mixed-precision=no --num-processes=2 SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1"},
        config=MULTI_GPU,
        hardware=FOUR_GPUS,
    ),
    "--cpu over a config with GPUs": Row(
        "--cpu --num_processes 2 SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "fp16", "OMP_NUM_THREADS": "4"},
        config=MULTI_GPU,
        hardware=FOUR_GPUS,
    ),
    "--multi_gpu over a config with the CPU": Row(
        "--multi_gpu --num_processes 2 SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"ACCELERATE_USE_CPU": "false", "OMP_NUM_THREADS": "1"},
        config="{distributed_type: 'NO', use_cpu: true}",
        hardware=FOUR_GPUS,
    ),
    "several over a config for one": Row(
        "--num_processes 2 SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"OMP_NUM_THREADS": "1"},
        config="{distributed_type: 'NO', num_processes: 1}",
        hardware=FOUR_GPUS,
    ),
    "a config for one, without a number": Row(
        "SCRIPT", "SCRIPT", {"OMP_NUM_THREADS": "1"}, config="{distributed_type: 'NO'}", hardware=FOUR_GPUS
    ),
    "a config for many, without a number": Row(
        "SCRIPT",
        f"{RUN} 4 --standalone SCRIPT",
        {"OMP_NUM_THREADS": "1"},
        config="{distributed_type: MULTI_GPU}",
        hardware=FOUR_GPUS,
    ),
    "a config as the questionnaire of 1.15 wrote it": Row(
        "SCRIPT",
        "SCRIPT",
        {
            "ACCELERATE_CPU_AFFINITY": "false",
            "ACCELERATE_DEBUG_MODE": "false",
            "ACCELERATE_DOWNCAST_BF16": "false",
            "ACCELERATE_MIXED_PRECISION": "bf16",
            "ACCELERATE_USE_CPU": "false",
            "OMP_NUM_THREADS": "8",
        },
        config=WRITTEN_BY_1_15,
    ),
    "what 1.15 forgot in config files": Row(
        "SCRIPT",
        f"{RUN} 2 --nnodes 2 --rdzv_backend c10d --rdzv_endpoint host0:29500 SCRIPT",
        {"ACCELERATE_CPU_AFFINITY": "true", "OMP_NUM_THREADS": "1"},
        config="{distributed_type: MULTI_GPU, num_processes: 4, num_machines: 2, main_process_ip: host0, "
        "rdzv_backend: c10d, same_network: true, enable_cpu_affinity: true}",
        hardware=FOUR_GPUS,
    ),
    "the host of a c10d rendezvous": Row(
        "--cpu --num_machines 2 --machine_rank 0 --num_processes 4 --main_process_ip host0 --rdzv_backend c10d SCRIPT",
        f"{RUN} 2 --nnodes 2 --rdzv_backend c10d --rdzv_endpoint host0:29500 --rdzv_conf is_host=1 SCRIPT",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "4"},
    ),
    "a guest of a c10d rendezvous, with more settings": Row(
        "--cpu --num_machines 2 --machine_rank 1 --num_processes 4 --main_process_ip host0 --rdzv_conf join_timeout=9 "
        "SCRIPT",
        f"{RUN} 2 --nnodes 2 --rdzv_backend c10d --rdzv_endpoint host0:29500 --rdzv_conf is_host=0,join_timeout=9 "
        "SCRIPT",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "4"},
        config="{distributed_type: MULTI_CPU, num_machines: 2, machine_rank: 0, rdzv_backend: c10d}",
    ),
    "who is the host is said already": Row(
        "--cpu --num_machines 2 --machine_rank 1 --num_processes 4 --main_process_ip host0 --rdzv_conf is_host=1 "
        "--rdzv_backend c10d SCRIPT",
        f"{RUN} 2 --nnodes 2 --rdzv_backend c10d --rdzv_endpoint host0:29500 --rdzv_conf is_host=1 SCRIPT",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "4"},
    ),
    "a rank of 0 in a file that may be on every machine": Row(
        "SCRIPT",
        f"{RUN} 2 --nnodes 2 --rdzv_backend c10d --rdzv_endpoint host0:29500 SCRIPT",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "4"},
        config="{distributed_type: MULTI_CPU, num_processes: 4, num_machines: 2, machine_rank: 0, "
        "main_process_ip: host0, rdzv_backend: c10d}",
    ),
    "compilation, by flag and config": Row(
        "--dynamo_mode max-autotune SCRIPT",
        "SCRIPT",
        {
            "ACCELERATE_DYNAMO_BACKEND": "inductor",
            "ACCELERATE_DYNAMO_MODE": "max-autotune",
            "ACCELERATE_DYNAMO_USE_DYNAMIC": "false",
            "OMP_NUM_THREADS": "8",
        },
        config="{distributed_type: 'NO', "
        "dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: default, dynamo_use_dynamic: false}}",
    ),
    "debugging, pinning, accumulation": Row(
        "--debug --enable_cpu_affinity --gradient_accumulation_steps 4 SCRIPT",
        "SCRIPT",
        {
            "ACCELERATE_CPU_AFFINITY": "true",
            "ACCELERATE_DEBUG_MODE": "true",
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
            "OMP_NUM_THREADS": "8",
        },
    ),
    "chosen devices": Row(
        "--gpu_ids 0,2 SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"CUDA_VISIBLE_DEVICES": "0,2", "OMP_NUM_THREADS": "1"},
        hardware=FOUR_GPUS,
    ),
    "chosen devices of another vendor": Row(
        "--gpu_ids 1 SCRIPT",
        "SCRIPT",
        {"ASCEND_RT_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "1"},
        hardware=Hardware("npu", 8),
    ),
    "all devices": Row(
        "--gpu_ids all --num_processes 1 SCRIPT", "SCRIPT", {"OMP_NUM_THREADS": "1"}, hardware=FOUR_GPUS
    ),
    "GPUs that can't talk to each other": Row(
        "SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"NCCL_IB_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        hardware=Hardware("cuda", 2, peer_to_peer=False),
        environ={"NCCL_P2P_DISABLE": "1"},
    ),
    "a port": Row(
        "--num_processes 2 --main_process_port 29501 SCRIPT",
        f"{RUN} 2 --nnodes 1 --node_rank 0 --master_addr 127.0.0.1 --master_port 29501 SCRIPT",
        {"OMP_NUM_THREADS": "1"},
        hardware=FOUR_GPUS,
    ),
    "any port": Row(
        "--num_processes 2 --main_process_port 0 SCRIPT",
        f"{RUN} 2 --standalone SCRIPT",
        {"OMP_NUM_THREADS": "1"},
        hardware=FOUR_GPUS,
    ),
    "two machines": Row(
        "--num_processes 8 --num_machines 2 --machine_rank 1 --main_process_ip host0 --main_process_port 2222 SCRIPT",
        f"{RUN} 4 --nnodes 2 --node_rank 1 --master_addr host0 --master_port 2222 SCRIPT",
        {"OMP_NUM_THREADS": "1"},
        hardware=FOUR_GPUS,
    ),
    "two machines, all of their devices": Row(
        "--num_machines 2 --main_process_ip host0 SCRIPT",
        f"{RUN} 4 --nnodes 2 --node_rank 0 --master_addr host0 --master_port 29500 SCRIPT",
        {"OMP_NUM_THREADS": "1"},
        hardware=FOUR_GPUS,
    ),
    "how processes are watched": Row(
        "--num_processes 2 --max_restarts 3 --monitor_interval 1 --tee 3 --log_dir logs --role worker "
        "--rdzv_conf timeout=60 SCRIPT",
        f"{RUN} 2 --standalone --rdzv_conf timeout=60 --max_restarts 3 --monitor_interval 1.0 --log_dir logs --tee 3 "
        "--role worker SCRIPT",
        {"OMP_NUM_THREADS": "1"},
        hardware=FOUR_GPUS,
    ),
    "one process that is started again": Row(
        "--num_processes 1 --max_restarts 3 SCRIPT",
        f"{RUN} 1 --standalone --max_restarts 3 SCRIPT",
        {"OMP_NUM_THREADS": "8"},
    ),
    "a module": Row("-m package.train --x 1", "-m package.train --x 1", {"OMP_NUM_THREADS": "8"}),
    "a module, twice": Row(
        "--module --num_processes 2 package.train",
        f"{RUN} 2 --standalone --module package.train",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "4"},
    ),
    "a program, twice": Row(
        "--no_python --num_processes 2 SCRIPT -v",
        f"{RUN} 2 --standalone --no_python SCRIPT -v",
        {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "4"},
    ),
    "flags of the script": Row(
        "SCRIPT --num_processes 3 --cpu -- x", "SCRIPT --num_processes 3 --cpu -- x", {"OMP_NUM_THREADS": "8"}
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_plan(row: Row) -> None:
    plan = plan_of(row.line, row.config, row.hardware, row.environ)
    assert plan.argv == (sys.executable, *row.command.replace("SCRIPT", SCRIPT).split())
    assert plan.env == row.env


def test_a_program_of_its_own_has_no_python_before_it() -> None:
    assert plan_of(f"--no_python {sys.executable} -V").argv == (sys.executable, "-V")


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("SCRIPT", ("single", 1, 1, 0, None, None)),
        ("--num_processes 2 SCRIPT", ("torchrun", 2, 1, 0, "127.0.0.1", 0)),
        (
            "--cpu --num_processes 4 --num_machines 2 --machine_rank 1 --main_process_ip host0 SCRIPT",
            ("torchrun", 4, 2, 1, "host0", 29500),
        ),
    ],
)
def test_what_a_plan_says_about_the_run(line: str, facts: tuple[object, ...]) -> None:
    plan = plan_of(line)
    where = (plan.machine_rank, plan.address, plan.port)
    assert (plan.launcher, plan.num_processes, plan.num_machines, *where) == facts


def test_plans_are_values() -> None:
    first, second = plan_of("--num_processes 2 SCRIPT"), plan_of("--num-processes=2 SCRIPT")
    assert first == second
    assert first != plan_of("--num_processes 3 SCRIPT")
