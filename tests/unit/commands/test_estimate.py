"""`accelerate estimate-memory`: what is printed of local models, for people and for programs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from accelerate.commands import estimate

#: 2 MiB of bf16: an embedding of half of it, and four layers.
WEIGHTS = {"embed.weight": torch.zeros(1024, 512, dtype=torch.bfloat16)} | {
    f"layers.{index}.proj.weight": torch.zeros(256, 512, dtype=torch.bfloat16) for index in range(4)
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 256,
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return a folder with a checkpoint and its configuration."""
    save_file(WEIGHTS, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the command, and return what it prints."""
    estimate.estimate_command(estimate.estimate_command_parser().parse_args(list(words)))
    return capsys.readouterr().out


def test_the_flags_have_the_defaults_of_the_reference() -> None:
    args = estimate.estimate_command_parser().parse_args(["bert"])
    assert (args.model_name, args.library_name, args.trust_remote_code) == ("bert", None, False)
    assert args.dtypes == ["float32", "float16", "int8", "int4"]


def test_a_table_for_people(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, folder)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    assert rows[1:] == [
        ["dtype", "Largest", "Weights", "Training"],
        ["float32", "2.0 MiB", "4.0 MiB", "16.0 MiB"],
        ["float16", "1.0 MiB", "2.0 MiB", "16.0 MiB"],
        ["int8", "512.0 KiB", "1.0 MiB", "-"],
        ["int4", "256.0 KiB", "512.0 KiB", "-"],
    ]
    assert len({len(line) for line in shown.splitlines() if line[0] in "┌│├└"}) == 1


def test_tokens_show_activations_and_every_format_can_be_asked_for(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run(capsys, folder, "--dtypes", "all", "--sequence-length", "64", "--batch-size", "2")
    assert [name for name in ("fp8", "bfloat16", "KV cache", "Inference", "2 x 64 tokens") if name not in shown] == []
    cache = 2 * 4 * 512 * 128 * 2
    assert f"{cache / 2**20:.1f} MiB" in shown
    assert max(len(line) for line in shown.splitlines() if line[0] in "├└") <= 80


def test_without_a_configuration_activations_are_not_known(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(folder, "config.json").unlink()
    shown = run(capsys, folder, "--sequence_length", "64")
    assert "Activations are not known" in shown


def test_json_and_plans_for_programs(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dtypes", "float16", "--sequence_length", "64", "--max_memory", "0=1536KiB,cpu=10MiB", "--json"]
    found = json.loads(run(capsys, folder, *words))
    assert found["estimates"][0]["weights"] == 2 * 2**20
    assert found["estimates"][0]["training"] == 16 * 2**20
    devices = {each["device"]: each["weights"] for each in found["plans"]["float16"]}
    assert devices == {0: 1.25 * 2**20, "cpu": 0.75 * 2**20}
    assert [each["kv_cache"] > 0 for each in found["plans"]["float16"]] == [True, False]
    shown = run(capsys, folder, *words[:-1])
    assert "Planned in float16" in shown


def test_a_batch_without_a_length_is_refused(folder: str) -> None:
    args = estimate.estimate_command_parser().parse_args([folder, "--batch_size", "4"])
    with pytest.raises(ValueError, match="pass --sequence_length"):
        estimate.estimate_command(args)


def test_rows_for_code_that_reads_them(folder: str) -> None:
    args = argparse.Namespace(model_name=folder, dtypes=["float32", "int8"], trust_remote_code=False)
    full = 4 * 2**20
    stages = {"model": full, "gradients": full, "optimizer": 2 * full, "step": 4 * full}
    none = dict.fromkeys(stages, -1)
    assert estimate.gather_data(args) == [["float32", full / 2, full, stages], ["int8", full / 8, full / 4, none]]


def test_stages_of_training() -> None:
    assert estimate.estimate_training_usage(100, "float16") == {
        "model": 100,
        "gradients": 150,
        "optimizer": 200,
        "step": 200,
    }
    with pytest.raises(ValueError, match="MS-AMP"):
        estimate.estimate_training_usage(100, "float32", "O1")


def test_an_empty_model_has_no_memory(folder: str) -> None:
    model = estimate.create_empty_model(folder, None)
    assert {name: each.shape for name, each in model.state_dict().items()} == {
        name: each.shape for name, each in WEIGHTS.items()
    }
    assert all(each.is_meta for each in model.parameters())


@pytest.mark.parametrize(
    ("said", "library"),
    [
        ("this is a model of timm", "timm"),
        ("x does not appear to have a file named config.json", "transformers"),
        ("no connection", "unknown"),
    ],
)
def test_which_library_a_failure_speaks_of(said: str, library: str) -> None:
    assert estimate.check_has_model(OSError(said)) == library


def test_ids_of_timm() -> None:
    assert estimate.add_timm_hub_prefix("resnet18") == "timm/resnet18"
    assert estimate.add_timm_hub_prefix("timm/resnet18") == "timm/resnet18"


def test_what_the_hub_says_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    def answer(error: type[Exception]) -> None:
        def model_info(repo: str, token: str | None) -> None:
            raise error.__new__(error)  # its constructor wants the response of a server

        monkeypatch.setattr("huggingface_hub.model_info", model_info)

    answer(GatedRepoError)
    assert estimate.verify_on_hub("a/b") == "gated"
    answer(RepositoryNotFoundError)
    assert estimate.verify_on_hub("a/b") == "repo"
    monkeypatch.setattr("huggingface_hub.model_info", lambda repo, token: (repo, token))
    assert estimate.verify_on_hub("a/b", "t") == ("a/b", "t")


def test_a_long_title_ends_as_it_is_and_fits() -> None:
    table = estimate.create_ascii_table(["a"], [["1"]], "x" * 200 + "/model").splitlines()
    assert {len(line) for line in table} == {80}
    assert table[1].startswith("│…xx")
    assert table[1].endswith("xx/model│")
