"""What one run has saved another one takes up: in every layout, by every strategy, on any number of processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import world_of
from .sharded import PLAN, V1, V2, WHOLE_PLAN, Case, accelerator_for, build, groups, loss_of, micro_batches, share_of

SHARDED = Case(plugin={**V2, "state_dict_type": "SHARDED_STATE_DICT"})
FULL = Case(plugin={**V2, "state_dict_type": "FULL_STATE_DICT"})
PLAIN = Case(plugin=None)
FLAT = Case(plugin={**V1, "state_dict_type": "SHARDED_STATE_DICT"})
FLAT_FULL = Case(plugin={**V1, "state_dict_type": "FULL_STATE_DICT"})
FLAT_LOCAL = Case(plugin={**V1, "state_dict_type": "LOCAL_STATE_DICT"})
TP = Case(plugin=None, mesh={"tp_size": 2}, plan=WHOLE_PLAN)
TP_REPLICAS = Case(plugin=None, mesh={"tp_size": 2, "dp_replicate_size": 2}, plan=PLAN)
TP_SHARDED = Case(plugin=SHARDED.plugin, mesh={"tp_size": 2, "dp_shard_size": 2}, plan=WHOLE_PLAN)
TP_FULL = Case(plugin=FULL.plugin, mesh={"tp_size": 2, "dp_shard_size": 2}, plan=PLAN)

OPTIMIZERS = {
    "adam": lambda model: torch.optim.AdamW(groups(model), lr=0.01, eps=1e-3),
    "adagrad": lambda model: torch.optim.Adagrad(groups(model), lr=0.01, eps=1e-3),
    "sgd": lambda model: torch.optim.SGD(groups(model), lr=0.1, momentum=0.9),
}


def run(case: Case, folder: str, kind: str, saves: bool, after: int = 3, **saving: Any) -> dict[str, Any]:
    """Train for six updates; save after some of them, or begin there with what was saved by another run."""
    accelerator = accelerator_for(case)
    model = build(replace(case, seeds=not saves), accelerator.process_index + (0 if saves else 7))
    optimizer = OPTIMIZERS[kind](model)
    model, optimizer = accelerator.prepare(model, optimizer)
    if not saves:
        accelerator.load_state(folder)
    for number, tokens in enumerate(
        micro_batches(replace(case, updates=6), *share_of(accelerator, accelerator.torch_device_mesh)), 1
    ):
        if not saves and number <= after * case.steps:
            continue
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, tokens))
            optimizer.step()
            optimizer.zero_grad()
        if saves and number == after * case.steps:
            accelerator.save_state(folder, **saving)
    accelerator.wait_for_checkpoint()
    return {name: value.clone() for name, value in accelerator.get_state_dict(model).items()}


def agree(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, atol=1e-5, rtol=0)


WAYS = {
    "2 by shard -> 2": (2, SHARDED, 2, SHARDED),
    "2 by shard -> 4": (2, SHARDED, 4, SHARDED),
    "4 by shard -> 2": (4, SHARDED, 2, SHARDED),
    "2 by shard -> 1": (2, SHARDED, 1, PLAIN),
    "2 by shard -> replicas": (2, SHARDED, 2, PLAIN),
    "2 whole -> 2": (2, FULL, 2, FULL),
    "2 whole -> 4": (2, FULL, 4, FULL),
    "2 whole -> 1": (2, FULL, 1, PLAIN),
    "2 whole -> 2 by shard": (2, FULL, 2, SHARDED),
    "2 by shard -> 2 whole": (2, SHARDED, 2, FULL),
    "1 -> 2": (1, PLAIN, 2, SHARDED),
    "replicas -> 4": (2, PLAIN, 4, FULL),
    "flat by shard -> 4": (2, FLAT, 4, FLAT),
    "flat by shard -> FSDP2": (2, FLAT, 4, SHARDED),
    "flat by shard -> 1": (2, FLAT, 1, PLAIN),
    "FSDP2 by shard -> flat": (2, SHARDED, 4, FLAT_FULL),
    "flat whole -> flat": (2, FLAT_FULL, 4, FLAT_FULL),
    "flat whole -> 1": (2, FLAT_FULL, 1, PLAIN),
    "1 -> flat": (1, PLAIN, 2, FLAT),
    "flat parts -> the same": (2, FLAT_LOCAL, 2, FLAT_LOCAL),
    "divided -> 1": (2, TP, 1, PLAIN),
    "divided -> shards": (2, TP, 2, SHARDED),
    "1 -> divided": (1, PLAIN, 2, TP),
    "divided replicas -> divided": (4, TP_REPLICAS, 2, TP),
    "divided shards -> divided replicas": (4, TP_SHARDED, 4, TP_REPLICAS),
    "divided shards -> shards": (4, TP_SHARDED, 2, SHARDED),
    "divided shards, whole -> divided shards": (4, TP_FULL, 4, TP_SHARDED),
    "shards -> divided shards": (2, SHARDED, 4, TP_SHARDED),
}


@pytest.mark.parametrize(("size", "case", "other_size", "other"), WAYS.values(), ids=WAYS.keys())
def test_another_run_goes_on(tmp_path, size, case, other_size, other):
    folder = str(tmp_path / "checkpoint")
    expected = world_of(size).run(run, case, folder, "adam", True)[0]
    agree(expected, world_of(other_size).run(run, other, folder, "adam", False)[0])


@pytest.mark.parametrize("kind", ["adagrad", "sgd"])
@pytest.mark.parametrize("case", [SHARDED, FULL], ids=["by shard", "whole"])
def test_states_of_every_kind(pair, tmp_path, case, kind):
    folder = str(tmp_path / "checkpoint")
    expected = pair.run(run, case, folder, kind, True)[0]
    agree(expected, pair.run(run, case, folder, kind, False)[0])


@pytest.mark.parametrize("case", [SHARDED, FULL], ids=["by shard", "whole"])
def test_saving_beside_training(pair, tmp_path, case):
    folder = str(tmp_path / "checkpoint")
    expected = pair.run(run, case, folder, "adam", True, blocking=False)[0]
    agree(expected, pair.run(run, case, folder, "adam", False)[0])


@pytest.mark.parametrize("case", [SHARDED, FULL], ids=["by shard", "whole"])
def test_tied_weights(pair, tmp_path, case):
    folder, case = str(tmp_path / "checkpoint"), replace(case, tied=True)
    expected = pair.run(run, case, folder, "adam", True)[0]
    agree(expected, pair.run(run, case, folder, "adam", False)[0])
    agree(expected, world_of(1).run(run, replace(case, plugin=None), folder, "adam", False)[0])


def test_the_names_of_files(pair, tmp_path):
    pair.run(run, SHARDED, str(tmp_path / "sharded"), "adam", True)
    pair.run(run, FULL, str(tmp_path / "full"), "adam", True)
    assert names(tmp_path / "sharded") == {
        *(f"{folder}/{file}" for folder in ("pytorch_model_fsdp_0", "optimizer_0") for file in SHARDS),
        *COMMON,
    }
    assert names(tmp_path / "full") == {"pytorch_model_fsdp.bin", "optimizer.bin", *COMMON}
    whole = torch.load(tmp_path / "full" / "pytorch_model_fsdp.bin", weights_only=True)
    assert sorted(whole) == sorted(build(FULL).state_dict())


SHARDS = (".metadata", "__0_0.distcp", "__1_0.distcp")
COMMON = {"random_states_0.pkl", "random_states_1.pkl", "manifest.json"}


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def loading(case: Case, folder: str) -> str:
    accelerator = accelerator_for(case)
    model = build(case)
    accelerator.prepare(model, OPTIMIZERS["adam"](model))
    try:
        accelerator.load_state(folder)
    except RuntimeError as error:
        return str(error)
    return "nothing was refused"


def test_a_damaged_shard_is_refused(pair, tmp_path):
    folder = tmp_path / "checkpoint"
    pair.run(run, SHARDED, str(folder), "adam", True)
    shard = folder / "pytorch_model_fsdp_0" / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    for error in pair.run(loading, SHARDED, str(folder)):
        assert "pytorch_model_fsdp_0/__1_0.distcp is damaged" in error


def test_a_checkpoint_of_another_model_is_refused(pair, tmp_path):
    folder = tmp_path / "checkpoint"
    pair.run(run, SHARDED, str(folder), "adam", True)
    for error in pair.run(loading, replace(SHARDED, tied=True), str(folder)):
        assert "optimizer_0 has parameter groups" in error


def accumulated(case: Case, folder: str, saves: bool) -> dict[str, torch.Tensor]:
    """Save after the first of two micro-batches, or go on from there."""
    accelerator = accelerator_for(case)
    model = build(case)
    model, optimizer = accelerator.prepare(model, OPTIMIZERS["sgd"](model))
    if not saves:
        accelerator.load_state(folder)
    first, second = micro_batches(replace(case, updates=1), *share_of(accelerator, None))
    for number, tokens in enumerate((first, second) if saves else (second,)):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, tokens))
            optimizer.step()
            optimizer.zero_grad()
        if saves and number == 0:
            accelerator.save_state(folder)
    return {name: value.clone() for name, value in accelerator.get_state_dict(model).items()}


def test_gradients_under_way_are_kept(pair, tmp_path):
    case, folder = replace(SHARDED, steps=2), str(tmp_path / "checkpoint")
    expected = pair.run(accumulated, case, folder, True)[0]
    agree(expected, pair.run(accumulated, case, folder, False)[0])
