"""Golden: how a run on a TPU is started, on this machine or on those of a pod; gcloud is a stand-in."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from accelerate.launchers.registry import select
from accelerate.launchers.tpu import TpuPodLauncher
from tests.launch.plans import FOUR_GPUS, SCRIPT, plan_of, settings_of

START = "-m accelerate.launchers.on_tpu --function"
TPU = (
    "{distributed_type: XLA, num_processes: 8, mixed_precision: bf16, downcast_bf16: 'yes', main_training_function: f}"
)
POD = (
    "{distributed_type: XLA, num_processes: 8, tpu_name: mine, tpu_zone: z1, tpu_use_cluster: true, "
    "tpu_env: [A=1, 'B=x y'], mixed_precision: bf16}"
)
SSH = "gcloud compute tpus tpu-vm ssh"


@pytest.mark.parametrize(
    ("line", "config", "expected", "env"),
    [
        ("--tpu SCRIPT --lr 1", "", f"{START} main SCRIPT --lr 1", {}),
        (
            "--tpu --mixed_precision bf16 --num_processes 8 SCRIPT",
            "",
            f"{START} main --processes 8 SCRIPT",
            {"ACCELERATE_MIXED_PRECISION": "bf16", "XLA_USE_BF16": "1"},
        ),
        (
            "SCRIPT",
            TPU,
            f"{START} f --processes 8 SCRIPT",
            {"ACCELERATE_DOWNCAST_BF16": "true", "ACCELERATE_MIXED_PRECISION": "bf16", "XLA_DOWNCAST_BF16": "1"},
        ),
        (
            "--main_training_function g --tpu --debug -m package.train",
            "",
            f"{START} g --module package.train",
            {"ACCELERATE_DEBUG_MODE": "true"},
        ),
    ],
)
def test_a_process_on_each_core_of_this_machine(line: str, config: str, expected: str, env: dict[str, str]) -> None:
    plan = plan_of(line, config)
    assert plan.argv == (sys.executable, *expected.replace("SCRIPT", SCRIPT).split())
    assert plan.env == {"OMP_NUM_THREADS": "1", **env}
    assert plan.launcher == "tpu"


def test_the_library_counts_the_cores() -> None:
    assert "processes:   one for each core" in str(plan_of("--tpu SCRIPT"))
    assert settings_of("--tpu SCRIPT").chosen_for_you() == []


@pytest.mark.parametrize("line", ["--cpu SCRIPT", "--no_tpu --num_processes 4 SCRIPT"])
def test_a_config_for_a_tpu_without_it(line: str) -> None:
    assert plan_of(line, TPU, FOUR_GPUS).launcher == "torchrun"


def test_every_machine_of_a_pod_runs_the_launch() -> None:
    plan = plan_of("--tpu_use_sudo --dynamo_mode default SCRIPT --name a$b", POD)
    (command,) = plan.commands
    assert command[:9] == [*SSH.split(), "mine", "--zone", "z1", "--command"]
    assert command[-2:] == ["--worker", "all"]
    assert shlex.split(command[9]) == shlex.split(
        "sudo env ACCELERATE_IN_TPU_POD=1 XLA_USE_BF16=1 A=1 'B=x y' accelerate launch --tpu --no_tpu_cluster "
        f"--mixed_precision bf16 --num_processes 8 --dynamo_mode default {SCRIPT} --name 'a$b'"
    )
    assert (plan.launcher, plan.env, plan.num_processes) == ("tpu pod", {}, 8)


def test_machines_can_be_named_and_secrets_stay_hidden() -> None:
    plan = plan_of("--tpu_cluster --vm a --vm b --env WANDB_API_KEY=1234 --env C=2 SCRIPT --password x")
    assert [command[:7] for command in plan.commands] == [[*SSH.split(), name, "--command"] for name in "ab"]
    assert "WANDB_API_KEY=1234 C=2" in plan.commands[0][7]
    shown = str(plan)
    assert shown.count(SSH) == 2
    assert "1234" not in shown
    assert "--password x" not in shown


@pytest.mark.parametrize(
    ("line", "config", "parts"),
    [
        ("--tpu_cluster SCRIPT", "", ["--tpu_cluster without a TPU", "--vm NAME"]),
        ("--tpu_cluster --vm a --env 1=2 SCRIPT", "", ["--env 1=2", "NAME=VALUE"]),
        ("--cpu --tpu SCRIPT", "", ["--cpu and --tpu", "runs on the CPU", "torch_xla"]),
        ("--multi_gpu --tpu SCRIPT", "", ["--multi_gpu and --tpu"]),
        ("--use_fsdp --tpu SCRIPT", "", ["--tpu and --use_fsdp", "FSDP"]),
        ("--use_deepspeed --tpu_cluster SCRIPT", "", ["--tpu_cluster and --use_deepspeed"]),
        ("--tpu --no_python SCRIPT", "", ["--tpu and --no_python", "--main_training_function"]),
        ("--tpu --cpu SCRIPT", POD, ["--cpu and --tpu"]),
    ],
)
def test_is_refused(line: str, config: str, parts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"(?s)^Given: .*\nWhy not: .*\nAllowed: .*\nWhat to do: ") as refused:
        plan_of(line, config)
    assert [part for part in parts if part not in str(refused.value)] == []


def test_flags_without_effect_are_named() -> None:
    settings = settings_of("--tpu --vm a --max_restarts 2 SCRIPT")
    assert sorted(text.partition(" has")[0] for text in select(settings).ignored(settings)) == [
        "--max_restarts 2",
        "--vm ['a']",
    ]


@pytest.fixture
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a gcloud on the PATH that runs the command here, and fails for the machine `bad`."""
    program = tmp_path / "gcloud"
    program.write_text('#!/bin/sh\necho "$5 $7" >> reached\n[ "$5" = bad ] && exit 7\nexec sleep "${WAIT:-0}"\n')
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "reached"


def test_all_machines_are_reached_at_once(gcloud: Path) -> None:
    plan = plan_of("--tpu_cluster --vm a --vm b SCRIPT")
    assert TpuPodLauncher().run(plan) == 0
    assert sorted(line.partition(" ")[0] for line in gcloud.read_text().splitlines()) == ["a", "b"]


def test_the_first_failure_ends_the_others(gcloud: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAIT", "60")
    started = time.monotonic()
    assert TpuPodLauncher().run(plan_of("--tpu_cluster --vm a --vm bad SCRIPT")) == 7
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_ends_the_connections(
    gcloud: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[BaseException]
) -> None:
    monkeypatch.setenv("WAIT", "60")
    plan = plan_of("--tpu_cluster --vm a --vm b SCRIPT")
    before = set(psutil.Process().children())
    timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
    timer.start()
    with pytest.raises(expected):
        TpuPodLauncher().run(plan)
    timer.join()
    assert set(psutil.Process().children()) <= before


def test_a_machine_without_gcloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no gcloud on the PATH(.|\n)*--dry_run"):
        TpuPodLauncher().run(plan_of("--tpu_cluster --vm a SCRIPT"))
