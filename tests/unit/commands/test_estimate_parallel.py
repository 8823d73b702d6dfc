"""`accelerate estimate-memory` for meshes: the tables, what programs get, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from accelerate.big_modeling.llama import CONFIGS
from accelerate.commands import estimate
from accelerate.commands.estimate_parallel import in_one_unit

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 500,
    "max_position_embeddings": 64,
}


SIZES = {name: value for name, value in CONFIG.items() if isinstance(value, int)}


@pytest.fixture(params=["by name", "by configuration"])
def small(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the command is told for a small model."""
    if request.param == "by name":
        monkeypatch.setitem(CONFIGS, "llama-small", SIZES)
        return "llama-small"
    pytest.importorskip("transformers", reason="builds the model from its configuration")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path / "config.json")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the command, and return what it prints."""
    estimate.estimate_command(estimate.estimate_command_parser().parse_args(list(words)))
    return capsys.readouterr().out


def rows(shown: str) -> list[list[str]]:
    """Return the cells of all tables."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]


def test_meshes_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "llama-7b", "--parallelism", "dp_shard=64,tp=8", "--parallelism", "dp_replicate=8")
    found = rows(shown)
    assert found[1] == ["Mesh", "Weights", "Grads", "Optim.", "Activ.", "Peak"]
    assert [row[0] for row in found[2:4]] == ["dp_shard=64,tp=8", "dp_replicate=8"]
    assert found[3][1:4] == ["25.1", "25.1", "50.2"]
    assert found[5] == ["Mesh", "Gather", "Scatter", "Reduce", "Send", "Exch.", "All", "Tokens"]
    assert found[7][3] == "43.9"  # twice 7/8 of 25.1
    assert "bf16" in shown
    assert "1 x 4096 tokens" in shown
    assert "Computed, not measured" in shown


def test_the_usual_meshes_fit_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "llama-7b", "--num_processes", "1024", "--activation_checkpointing", "--optimizer", "sgd")
    assert max(map(len, shown.splitlines())) <= 94  # the sentence that explains a precision is longer than the tables
    assert max(len(line) for line in shown.splitlines() if line[0] in "┌│├└") <= 80
    assert {"dp_shard=1024", "dp_shard=128,tp=8"} <= {row[0] for row in rows(shown) if row}
    assert "with activation checkpointing" in shown


def test_configurations_and_a_simulation_for_programs(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--parallelism", "dp_shard=4,tp=2", "pp=2", "--num_microbatches", "2", "--json", "--simulate"]
    found = json.loads(run(capsys, small, *words))
    assert found["training"]["sequence_length"] == 64
    first, second = found["plans"]
    assert (first["mesh"]["tp"], first["num_processes"], first["tokens"]) == (2, 8, 4 * 2 * 64)
    assert first["simulated"]["differences"] == []
    assert first["simulated"]["parameters"] == first["ranks"][0]["memory"]["parameters"]
    assert sum(first["ranks"][0]["sent"].values()) > 0
    assert second["simulated"].startswith("not simulated")


def test_a_simulation_says_whether_it_agrees(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, small, "--parallelism", "dp_shard=8", "--simulate", "--sequence_length", "32")
    assert "dp_shard=8: a simulation of its first rank agrees, and has a peak of" in shown


def test_checkpoints_without_layers_are_planned_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = {f"layers.{index}.weight": torch.zeros(6, 8) for index in range(4)}
    save_file(weights, tmp_path / "model.safetensors")
    shown = run(capsys, str(tmp_path), "--parallelism", "dp_shard=4", "--precision", "fp32", "--simulate")
    assert rows(shown)[2][1:5] == ["0.25", "0.25", "0.52", "-"]  # two rows of four layers; states and steps
    assert "Activations are not known" in shown
    assert "agrees" in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--parallelism", "dp_shard=8", "--num_processes", "4"], "Allowed: dp_shard=4"),
        (["--parallelism", "dp_shard=8", "--max_memory", "0=1GiB"], "--max_memory with a mesh"),
        (["--parallelism", "dp_shard=8", "--dtypes", "int8"], "--dtypes with a mesh"),
        (["--optimizer", "sgd", "--simulate"], "--optimizer and --simulate without a mesh"),
        (["--parallelism", "dp_shard=8", "--optimizer", "adamx"], "adamw"),
        (["--num_processes", "0"], "from 1 on"),
        (["--parallelism", "tp=3"], "a size of 1, 2, 4"),
        (["--parallelism", "tp=2", "--tp_plan", "layers=sideways"], "no module"),
    ],
)
def test_what_has_no_effect_or_does_not_fit_is_refused(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="What to do") as refusal:
        run(capsys, "llama-7b", *words)
    assert expected in str(refusal.value)


def test_no_usual_mesh_may_fit(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(run(capsys, small, "--num_processes", "1"))[2][0] == "one rank"


@pytest.mark.parametrize(
    ("sizes", "unit", "cells"),
    [
        ([None, 0, 5], "B", ["-", "-", "5.00"]),
        ([2**20, 2**30], "GiB", ["0.00", "1.00"]),
        ([2**50], "GiB", ["1048576"]),
    ],
)
def test_sizes_in_one_unit(sizes: list[int | None], unit: str, cells: list[str]) -> None:
    assert in_one_unit([sizes]) == (unit, [cells])
