"""Which door a setting came through, what is said about it, and what was nobody's choice."""

from __future__ import annotations

import pytest

from accelerate.launchers.hardware import Hardware
from accelerate.launchers.single import SingleLauncher
from accelerate.launchers.torchrun import TorchrunLauncher
from tests.launch.plans import CPU, FOUR_GPUS, ONE_GPU, settings_of


def test_a_setting_is_named_as_it_was_given() -> None:
    settings = settings_of("--num_processes 2 --cpu SCRIPT", "{distributed_type: MULTI_CPU, mixed_precision: bf16}")
    assert settings.said("num_processes") == "--num_processes 2"
    assert settings.said("cpu") == "--cpu"
    assert settings.said("mixed_precision") == "`mixed_precision: bf16` in c.yaml"
    assert settings.said("distributed_type") == "`distributed_type: MULTI_CPU` in c.yaml"
    assert settings.get("rdzv_backend") == "static"


@pytest.mark.parametrize(
    ("line", "config", "hardware", "environ", "on_cpu"),
    [
        ("SCRIPT", "", CPU, {}, True),
        ("SCRIPT", "", ONE_GPU, {}, False),
        ("SCRIPT", "", ONE_GPU, {"ACCELERATE_USE_CPU": "yes"}, True),
        ("SCRIPT", "{distributed_type: 'NO', use_cpu: false}", ONE_GPU, {"ACCELERATE_USE_CPU": "yes"}, False),
        ("--cpu SCRIPT", "{distributed_type: 'NO', use_cpu: false}", ONE_GPU, {}, True),
        ("--no_cpu SCRIPT", "{distributed_type: 'NO', use_cpu: true}", ONE_GPU, {}, False),
        ("--multi_gpu SCRIPT", "{distributed_type: MULTI_CPU, num_processes: 2}", FOUR_GPUS, {}, False),
        ("SCRIPT", "{distributed_type: MULTI_CPU, num_processes: 2}", FOUR_GPUS, {}, True),
        ("SCRIPT", "{distributed_type: MULTI_GPU, num_processes: 2}", CPU, {}, False),
        ("--cpu SCRIPT", "{distributed_type: MULTI_GPU, num_processes: 2}", FOUR_GPUS, {}, True),
    ],
)
def test_who_decides_about_the_cpu(
    line: str, config: str, hardware: Hardware, environ: dict[str, str], on_cpu: bool
) -> None:
    assert settings_of(line, config, hardware, environ).on_cpu is on_cpu


@pytest.mark.parametrize(
    ("line", "hardware", "told"),
    [
        ("--num_processes 1 SCRIPT", FOUR_GPUS, []),
        ("SCRIPT", FOUR_GPUS, ["starting 4 processes on cuda, having found 4 cuda devices"]),
        ("SCRIPT", CPU, ["starting 1 process on the CPU, having found no accelerator"]),
        ("--cpu SCRIPT", FOUR_GPUS, ["starting 1 process on the CPU"]),
        (
            "--num_processes 2 SCRIPT",
            Hardware("cuda", 2, peer_to_peer=False),
            [
                "setting NCCL_P2P_DISABLE and NCCL_IB_DISABLE to 1: "
                "with this driver, GPUs of the RTX 40 series hang without"
            ],
        ),
    ],
)
def test_what_was_chosen_for_the_person(line: str, hardware: Hardware, told: list[str]) -> None:
    assert [text.partition(";")[0] for text in settings_of(line, hardware=hardware).chosen_for_you()] == told


def test_flags_without_effect_are_named() -> None:
    line = "--num_processes 1 --main_process_port 29501 --monitor_interval 0.1 --same_network SCRIPT"
    assert SingleLauncher().ignored(settings_of(line)) == [
        "--main_process_port 29501 has no effect: one process has nobody to meet",
        "--same_network has no effect: one process has nobody to meet",
    ]
    line = "--num_processes 2 --main_training_function train SCRIPT"
    assert TorchrunLauncher().ignored(settings_of(line)) == [
        "--main_training_function train has no effect: the run isn't one on TPUs"
    ]
    assert SingleLauncher().ignored(settings_of("SCRIPT", "{distributed_type: 'NO', same_network: true}")) == []


def test_settings_show_where_they_come_from() -> None:
    shown = str(settings_of("--mixed_precision bf16 --dry_run SCRIPT", "{distributed_type: 'NO'}"))
    assert shown.splitlines() == [
        "settings:",
        "  num_processes 1, having found no accelerator",
        "  `distributed_type: NO` in c.yaml",
        "  --mixed_precision bf16",
    ]
