"""Settings of this machine: which config file counts, and which hardware is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelerate.config.enums import DynamoBackend
from accelerate.launchers import read
from accelerate.launchers.hardware import Hardware
from accelerate.launchers.read import read_settings


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, str]]:
    """Four GPUs, a default config file, and a record of the environments in which hardware is looked for."""
    environments: list[dict[str, str]] = []

    def find(environ: dict[str, str]) -> Hardware:
        environments.append(environ)
        return Hardware("cuda", 4)

    monkeypatch.setattr(read, "find_hardware", find)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text("{distributed_type: MULTI_GPU, num_processes: 3}")
    return environments


def test_the_default_file_counts(seen: list[dict[str, str]]) -> None:
    settings = read_settings("train.py", ("--x",), {})
    assert (settings.num_processes, settings.arguments, settings.hardware.count) == (3, ("--x",), 4)
    assert str(settings.file).endswith("default_config.yaml")


def test_with_cpu_the_default_file_does_not_count_and_nobody_looks_for_hardware(seen: list[dict[str, str]]) -> None:
    settings = read_settings("train.py", (), {"cpu": True})
    assert (settings.num_processes, settings.file, seen) == (1, None, [])


def test_a_named_file_replaces_the_default_one(seen: list[dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("{distributed_type: MULTI_GPU, num_processes: 2, gpu_ids: '1,3'}")
    settings = read_settings("train.py", (), {}, str(tmp_path / "c.yaml"))
    assert settings.num_processes == 2
    assert seen[0]["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_a_config_of_jobs_says_nothing_about_this_machine(seen: list[dict[str, str]], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "{compute_environment: AMAZON_SAGEMAKER, distributed_type: 'NO', ec2_instance_type: a, iam_role_name: b, "
        "mixed_precision: bf16, dynamo_config: {backend: inductor}}"
    )
    settings = read_settings("train.py", (), {"num_machines": 2}, str(tmp_path / "c.yaml"))
    assert settings.job is not None
    assert settings.job.ec2_instance_type == "a"
    assert {dest: found.value for dest, found in settings.found.items()} == {
        "mixed_precision": "bf16",
        "dynamo_backend": DynamoBackend.INDUCTOR,
        "num_machines": 2,
    }
    assert seen == []


def test_a_file_that_is_not_there_is_refused(seen: list[dict[str, str]]) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml"):
        read_settings("train.py", (), {}, "nowhere.yaml")
