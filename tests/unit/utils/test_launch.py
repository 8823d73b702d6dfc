"""What programs that parse a launch themselves get: command lines, environments, single launchers."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

import accelerate.launchers
import accelerate.utils
from accelerate.commands import launch as commands
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.launchers import read
from accelerate.launchers.base import Launcher
from accelerate.launchers.hardware import Hardware
from accelerate.launchers.plan import LaunchPlan
from accelerate.utils import launch

DEEPSPEED = "{distributed_type: DEEPSPEED, num_processes: 2, deepspeed_config: {zero_stage: 3}}"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with two GPUs and no default config file."""
    monkeypatch.setattr(read, "find_hardware", lambda environ: Hardware("cuda", 2))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("WITNESS", "kept")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "hosts").write_text("a slots=1\nb slots=1\n")
    (tmp_path / "ds.yaml").write_text(DEEPSPEED)
    return tmp_path


def parsed(line: str) -> argparse.Namespace:
    """Return the parsed command line."""
    return launch_command_parser().parse_args(line.split())


def added(env: dict[str, str]) -> dict[str, str]:
    """Return what an environment has beside that of this process."""
    assert env["WITNESS"] == "kept"
    return {name: value for name, value in env.items() if os.environ.get(name) != value}


def test_one_process() -> None:
    command, env = accelerate.utils.prepare_simple_launcher_cmd_env(parsed("--mixed_precision bf16 train.py --lr 1"))
    assert command == [sys.executable, "train.py", "--lr", "1"]
    assert added(env) == {"ACCELERATE_MIXED_PRECISION": "bf16", "OMP_NUM_THREADS": "1"}


def test_processes_that_torch_starts() -> None:
    args = parsed("--num_processes 2 --main_process_port 29511 train.py")
    env = accelerate.utils.prepare_multi_gpu_env(args)
    assert added(env) == {"OMP_NUM_THREADS": "1"}
    assert (args.nproc_per_node, args.master_addr, args.master_port) == ("2", "127.0.0.1", "29511")
    args = parsed("--num_processes 4 --num_machines 2 --machine_rank 1 --main_process_ip h --use_fsdp train.py")
    assert added(launch.prepare_multi_gpu_env(args))["ACCELERATE_USE_FSDP"] == "true"
    assert (args.nproc_per_node, args.nnodes, args.node_rank, args.rdzv_endpoint) == ("2", "2", 1, "h:29500")
    args = parsed("--num_processes 2 train.py")
    launch.prepare_multi_gpu_env(args)
    assert args.standalone is True


def test_deepspeed(folder: Path) -> None:
    args = parsed("--zero_stage 3 --num_processes 2 train.py")
    command, env = accelerate.utils.prepare_deepspeed_cmd_env(args)
    assert (command, args.nproc_per_node) == (None, "2")
    assert added(env) == {
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_USE_DEEPSPEED": "true",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": launch.env_var_path_add("PYTHONPATH", str(folder)),
    }
    command, env = launch.prepare_deepspeed_cmd_env(parsed("--deepspeed_hostfile hosts train.py --lr 1"))
    assert command is not None
    assert command[:5] == [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", "hosts"]
    assert command[-3:] == ["train.py", "--lr", "1"]
    assert env["ACCELERATE_USE_DEEPSPEED"] == "true"


def test_tpus() -> None:
    args, env = accelerate.utils.prepare_tpu(parsed("--tpu --mixed_precision bf16 train.py"), {"A": "1"})
    assert env == {"A": "1", "XLA_USE_BF16": "1"}
    args, env = launch.prepare_tpu(parsed("--debug --mixed_precision bf16 --downcast_bf16 train.py"), {})
    assert env == {"ACCELERATE_DEBUG_MODE": "true", "XLA_DOWNCAST_BF16": "1"}
    Path("pod.yaml").write_text("{distributed_type: XLA, tpu_use_cluster: true, tpu_vm: [a, b], tpu_env: [C=1]}")
    args, env = launch.prepare_tpu(parsed("--config_file pod.yaml train.py"), {}, pod=True)
    assert (args.vm, args.env, env) == (["a", "b"], ["C=1"], {})


def test_axes_and_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    env = launch.prepare_extend_env_parallelism_config(parsed("--parallelism_config_tp_size 2 train.py"), {"A": "1"})
    assert env == {"A": "1", "ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_TP_SIZE": "2"}
    monkeypatch.setenv("FOLDERS", "/a")
    assert launch.env_var_path_add("FOLDERS", "/b") == "/a:/b"
    assert launch.env_var_path_add("NO_FOLDERS", "/b") == "/b"


@pytest.mark.parametrize(
    ("door", "line", "launcher"),
    [
        ("simple_launcher", "train.py", "single"),
        ("multi_gpu_launcher", "--num_processes 2 train.py", "torchrun"),
        ("deepspeed_launcher", "--num_processes 2 train.py", "torchrun"),
        ("deepspeed_launcher", "--deepspeed_hostfile hosts train.py", "deepspeed"),
        ("tpu_launcher", "train.py", "tpu"),
        ("tpu_pod_launcher", "--vm a train.py", "tpu pod"),
    ],
)
def test_a_launcher_of_ones_own_choice(monkeypatch: pytest.MonkeyPatch, door: str, line: str, launcher: str) -> None:
    plans: list[LaunchPlan] = []

    def run(self: Launcher, plan: LaunchPlan) -> int:
        plans.append(plan)
        return 0

    for kind in Launcher.__subclasses__():
        monkeypatch.setattr(kind, "run", run)
    monkeypatch.setattr("accelerate.launchers.installed.NEEDED", ())
    getattr(commands, door)(parsed(line))
    (plan,) = plans
    assert plan.launcher == launcher
    assert (plan.env.get("ACCELERATE_USE_DEEPSPEED") == "true") == (door == "deepspeed_launcher")


def test_validated_arguments_keep_the_kind_of_run() -> None:
    args, _, _ = _validate_launch_command(parsed("--config_file ds.yaml train.py"))
    assert (args.use_deepspeed, args.use_fsdp, args.tpu, args.multi_gpu) == (True, False, False, False)
    command, env = launch.prepare_deepspeed_cmd_env(args)
    assert (command, env["ACCELERATE_DEEPSPEED_ZERO_STAGE"]) == (None, "3")
    args, _, _ = _validate_launch_command(parsed("--multi_gpu --config_file ds.yaml train.py"))
    assert (args.use_deepspeed, args.multi_gpu) == (False, True)


def test_a_function_to_start_processes_with() -> None:
    from accelerate.state import PartialState

    PartialState(cpu=True)
    assert accelerate.launchers.test_launch() is None
    assert PartialState().initialized


def test_a_config_file_for_this_machine(folder: Path) -> None:
    assert accelerate.utils.write_basic_config(save_location=str(folder / "new.yaml")) == folder / "new.yaml"
