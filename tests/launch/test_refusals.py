"""What can't be launched is refused in four parts that name what was given and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from accelerate.launchers.hardware import Hardware
from tests.launch.plans import CPU, FOUR_GPUS, ONE_GPU, SCRIPT, plan_of

MANY = "{distributed_type: MULTI_GPU, num_processes: 2}"

# What is typed, the config file, the hardware -> what has to be in the message.
REFUSED: dict[str, tuple[str, str, Hardware, list[str]]] = {
    "cpu and multi_gpu": ("--cpu --multi_gpu SCRIPT", "", FOUR_GPUS, ["--cpu and --multi_gpu", "leave out"]),
    "module and no_python": ("-m --no_python x", "", CPU, ["--module and --no_python"]),
    "multi_gpu for one": ("--multi_gpu --num_processes 1 SCRIPT", "", FOUR_GPUS, ["--num_processes 1", "2 or more"]),
    "multi_gpu with one device": ("--multi_gpu --gpu_ids 3 SCRIPT", "", FOUR_GPUS, ["--multi_gpu and 1 process"]),
    "multi_gpu without devices": ("--multi_gpu --num_processes 2 SCRIPT", "", CPU, ["no accelerator", "add --cpu"]),
    "more processes than devices": (
        "--num_processes 8 SCRIPT",
        "",
        FOUR_GPUS,
        ["8 processes on this machine (--num_processes 8), which has 4 cuda devices", "at most 4", "--num_processes 4"],
    ),
    "two processes on one device": ("--num_processes 2 SCRIPT", "", ONE_GPU, ["1 cuda device", "--cpu"]),
    "more processes than chosen devices": (
        "--num_processes 3 --gpu_ids 0,1 SCRIPT",
        "",
        FOUR_GPUS,
        ["2 of 4 cuda devices (gpu_ids)"],
    ),
    "a mesh with other places": (
        "--num_processes 3 SCRIPT",
        "{distributed_type: MULTI_CPU, num_processes: 4, parallelism_config: {parallelism_config_tp_size: 4}}",
        CPU,
        ["`parallelism_config.parallelism_config_tp_size: 4` in c.yaml, for 3 processes", "4 places", "tp_size=3"],
    ),
    "a config for other hardware": ("SCRIPT", MANY, CPU, ["`num_processes: 2` in c.yaml", "no accelerator"]),
    "a config for one with many": (
        "SCRIPT",
        "{distributed_type: 'NO', num_processes: 4}",
        FOUR_GPUS,
        ["`distributed_type: NO` in c.yaml and `num_processes: 4` in c.yaml", "one process"],
    ),
    "a config for GPUs on the CPU": (
        "SCRIPT",
        "{distributed_type: MULTI_GPU, num_processes: 2, use_cpu: true}",
        FOUR_GPUS,
        ["`distributed_type: MULTI_GPU`", "`use_cpu: True`", "MULTI_CPU"],
    ),
    "a number left open": (
        "SCRIPT",
        "{distributed_type: MULTI_GPU, num_processes: -1}",
        FOUR_GPUS,
        ["`num_processes: -1` in c.yaml", "--num_processes 2"],
    ),
    "a CPU run without a number": ("SCRIPT", "{distributed_type: MULTI_CPU}", CPU, ["without num_processes"]),
    "machines without an address": ("--num_machines 2 SCRIPT", "", FOUR_GPUS, ["no main_process_ip", "every machine"]),
    "a rank that isn't one": ("--machine_rank 1 --num_processes 2 SCRIPT", "", CPU, ["machine_rank 1 of 1 machine"]),
    "machines and any port": (
        "--num_machines 2 --main_process_ip host0 --main_process_port 0 SCRIPT",
        "",
        FOUR_GPUS,
        ["2 machines and main_process_port 0"],
    ),
    "uneven machines": (
        "--cpu --num_machines 2 --num_processes 3 --main_process_ip host0 SCRIPT",
        "",
        CPU,
        ["3 processes on 2 machines", "a multiple of 2"],
    ),
    "a flag for a kind of run without a launcher": (
        "--use_megatron_lm --megatron_lm_tp_degree 2 --megatron_lm_no_load_optim false SCRIPT",
        "",
        FOUR_GPUS,
        ["Given: --use_megatron_lm", "no launcher"],
    ),
    "a kind of run without a launcher": (
        "SCRIPT",
        "{distributed_type: MEGATRON_LM, num_processes: 4}",
        FOUR_GPUS,
        ["`distributed_type: MEGATRON_LM` in c.yaml", "no launcher", ", mpirun, slurm, ", "torchrun, single"],
    ),
}


@pytest.mark.parametrize(("line", "config", "hardware", "parts"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused(line: str, config: str, hardware: Hardware, parts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"(?s)^Given: .*\nWhy not: .*\nAllowed: .*\nWhat to do: ") as refused:
        plan_of(line, config, hardware)
    assert [part for part in parts if part not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("script", "parts"),
    [
        (SCRIPT.replace("plans.py", "plan.py"), ["plan.py", "there is no such file in", "did you mean", "plans.py"]),
        ("nowhere/train.py", ["there is no folder nowhere", "options of the launch come before the script"]),
    ],
)
def test_a_script_that_is_not_there_is_refused(script: str, parts: list[str]) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        plan_of(script)
    assert [part for part in parts if part not in str(refused.value)] == []


@pytest.mark.parametrize(
    "line", ["--num_processes 0 SCRIPT", "--num_machines 0 SCRIPT", "--mixed_precision fp12 SCRIPT"]
)
def test_values_that_no_setting_takes_end_with_code_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        plan_of(line)
    assert ended.value.code == 2
    flag, value, _ = line.split()
    assert capsys.readouterr().err.startswith(f"Given: {flag} {value}\nWhy not: ")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("#!/bin/bash\necho hello\n", "its first line names another program: #!/bin/bash"),
        ("learning_rate: 1\nsteps 3\n", "line 2 of it isn't Python"),
        ("\0", "its content isn't Python"),
    ],
)
def test_a_script_that_is_not_python_is_refused(content: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "train"
    path.write_text(content)
    with pytest.raises(ValueError) as refused:
        plan_of(f"--cpu {path}")
    assert why in str(refused.value)
    assert f"--no_python {path}" in str(refused.value)
    assert plan_of(f"--cpu --no_python {path}").argv == (str(path),)


@pytest.mark.parametrize("content", ["#!/usr/bin/env python3\nprint('\\d')\n", "x = 1\n", "PK\3\4 a zip file"])
def test_a_script_needs_no_ending_in_py(content: str, tmp_path: Path) -> None:
    path = tmp_path / "train"
    path.write_text(content)
    assert plan_of(f"--cpu {path}").argv == (sys.executable, str(path))


def test_a_submitted_run_need_not_fit_this_machine() -> None:
    plan = plan_of("--submit slurm --num_machines 2 --num_processes 16 SCRIPT", MANY)
    assert (plan.launcher, plan.num_machines, plan.num_processes) == ("slurm job", 2, 16)


def test_a_key_that_no_setting_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"num_proceses.*\n.*\n.*\n.*num_processes"):
        plan_of("SCRIPT", "{distributed_type: 'NO', num_proceses: 2}")
