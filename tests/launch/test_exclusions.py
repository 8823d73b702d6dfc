"""Settings that contradict each other are refused with both of their names; those without effect are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelerate.launchers.exclusions import EXCLUSIVE
from accelerate.launchers.registry import select
from accelerate.launchers.settings import declared
from tests.launch.plans import plan_of, settings_of

#: What to give a flag that takes a value.
VALUES = {"mpirun_hostfile": "hosts", "launcher": "ray", "deepspeed_hostfile": "hosts"}


@pytest.fixture(autouse=True)
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("a slots=1\nb slots=1\n")


def written(dest: str) -> str:
    """Return a flag as it is typed."""
    return f"{declared()[dest].flag} {VALUES.get(dest, '')}".strip()


PAIRS = [pair for pair in EXCLUSIVE if not pair[0][0].startswith("deepspeed_inc")]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0][0]}-{pair[1][0]}")
def test_two_flags_that_contradict_each_other(pair: tuple[tuple[str, str], tuple[str, str], str]) -> None:
    (first, first_means), (second, second_means), do = pair
    with pytest.raises(ValueError) as refused:
        plan_of(f"{written(first)} {written(second)} SCRIPT")
    assert str(refused.value).splitlines() == [
        f"Given: {written(first)} and {written(second)}",
        f"Why not: the first {first_means}, the second {second_means}",
        "Allowed: one of the two",
        f"What to do: {do}",
    ]


def test_a_flag_and_a_line_of_the_file() -> None:
    config = "{distributed_type: DEEPSPEED, deepspeed_config: {deepspeed_hostfile: hosts}}"
    with pytest.raises(ValueError, match=r"--launcher ray and `deepspeed_config.deepspeed_hostfile: hosts` in c.yaml"):
        plan_of("--launcher ray SCRIPT", config)
    assert plan_of("--use_fsdp --launcher ray --num_processes 2 SCRIPT", config).launcher == "ray"


@pytest.mark.parametrize(
    ("line", "reasons"),
    [
        ("--zero_stage 2 --num_processes 2", {"--zero_stage 2": "DeepSpeed trains with --use_deepspeed only"}),
        (
            "--use_deepspeed --deepspeed_multinode_launcher pdsh",
            {"--deepspeed_multinode_launcher pdsh": "torch's launcher starts the processes"},
        ),
        ("--use_deepspeed --deepspeed_multinode_launcher standard --gradient_clipping 1", {}),
        (
            "--use_deepspeed --zero_stage 2 --zero3_init_flag true --offload_param_device cpu",
            {
                "--zero3_init_flag": "it is about parameters, which ZeRO divides from stage 3 on",
                "--offload_param_device cpu": "it is about parameters, which ZeRO divides from stage 3 on",
            },
        ),
        ("--use_deepspeed --zero_stage 2 --zero3_init_flag false --offload_param_device none", {}),
        (
            "--use_deepspeed --zero_stage 3 --offload_optimizer_nvme_path /x",
            {"--offload_optimizer_nvme_path /x": "no optimizer states are kept on NVMe"},
        ),
        (
            "--use_deepspeed --zero_stage 3 --offload_param_device cpu --offload_param_nvme_path /x",
            {"--offload_param_nvme_path /x": "no parameters are kept on NVMe"},
        ),
        ("--use_deepspeed --offload_param_device nvme --offload_param_nvme_path /x", {}),
        (
            "--num_processes 2 --megatron_lm_tp_degree 2 --megatron_lm_no_load_optim False",
            {"--megatron_lm_tp_degree 2": "Megatron-LM trains with --use_megatron_lm only"},
        ),
        ("--cpu --gpu_ids 0", {"--gpu_ids 0": "the run is one on the CPU"}),
        ("--downcast_bf16", {"--downcast_bf16": "the run isn't one on TPUs"}),
        ("--tpu --downcast_bf16", {"--downcast_bf16": "it is about --mixed_precision bf16"}),
        ("--tpu --downcast_bf16 --mixed_precision bf16", {}),
        ("--num_processes 2 --fsdp_version 2", {"--fsdp_version 2": "parameters are sharded with --use_fsdp only"}),
    ],
)
def test_flags_without_effect_are_named(line: str, reasons: dict[str, str]) -> None:
    settings = settings_of(f"{line} SCRIPT")
    told = [text.split(" has no effect: ") for text in select(settings).ignored(settings)]
    assert dict(told) == reasons


def test_what_the_runner_of_deepspeed_does_not_read_is_named() -> None:
    line = "--use_deepspeed --deepspeed_hostfile hosts --machine_rank 1 --gpu_ids 0 --max_restarts 2 SCRIPT"
    settings = settings_of(line)
    assert sorted(text.partition(" has")[0] for text in select(settings).ignored(settings)) == [
        "--gpu_ids 0",
        "--machine_rank 1",
        "--max_restarts 2",
    ]
