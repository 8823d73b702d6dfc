"""The functions of `accelerate.utils.fsdp_utils`, as transformers' Trainer calls them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions

from .sharded import V1, V2, Case, accelerator_for, build, groups, language, library, loss_of, micro_batches

LAYOUTS = {
    "by shard": ("SHARDED_STATE_DICT", True, {"pytorch_model_fsdp_1", "optimizer_1"}),
    "whole": ("FULL_STATE_DICT", True, {"pytorch_model_fsdp_1.bin", "optimizer_1.bin"}),
    "a file for each rank": (
        "SHARDED_STATE_DICT",
        False,
        {f"{name}_1_rank{rank}.bin" for name in ("pytorch_model_fsdp", "optimizer") for rank in (0, 1)},
    ),
}


def trained(case: Case, updates: int, seed: int = 0) -> Any:
    """Return an Accelerator with a prepared model and optimizer after some updates."""
    accelerator = accelerator_for(case)
    model = language(seed)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(groups(model), lr=0.01))
    for tokens in micro_batches(case, accelerator.process_index, accelerator.num_processes)[:updates]:
        accelerator.backward(loss_of(model, tokens))
        optimizer.step()
        optimizer.zero_grad()
    return accelerator, model, optimizer


def round_trip(case: Case, folder: str, use_dcp: bool) -> tuple[bool, bool, list[str]]:
    """Save twice, load into others; return whether weights and states came back, and what lies in the folder."""
    from accelerate.utils import load_fsdp_model, load_fsdp_optimizer, save_fsdp_model, save_fsdp_optimizer

    accelerator, model, optimizer = trained(case, 2)
    plugin = accelerator.state.fsdp_plugin
    for _ in range(2):
        save_fsdp_model(plugin, accelerator, model, folder, 1, use_dcp=use_dcp)
        save_fsdp_optimizer(plugin, accelerator, optimizer, model, folder, 1, use_dcp=use_dcp)
    _, other, other_optimizer = trained(case, 1, seed=5)
    load_fsdp_model(plugin, accelerator, other, folder, 1, use_dcp=use_dcp)
    load_fsdp_optimizer(plugin, accelerator, other_optimizer, other, folder, 1, use_dcp=use_dcp)
    weights = all(map(same, model.state_dict().values(), other.state_dict().values()))
    pairs = zip(states_in_order(optimizer), states_in_order(other_optimizer), strict=True)
    states = all(same(one[key], two[key]) for one, two in pairs for key in one)
    return weights, states, sorted(path.name for path in Path(folder).iterdir())


def states_in_order(optimizer: Any) -> list[dict[str, torch.Tensor]]:
    """Return the states of the parameters that this rank has a part of, in the order of the groups."""
    held = (each for group in optimizer.param_groups for each in group["params"] if each.numel())
    return [optimizer.state[each] for each in held]


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return type(one) is type(two) and torch.equal(
        *(each.to_local() if hasattr(each, "to_local") else each for each in (one, two))
    )


@pytest.mark.parametrize(("layout", "use_dcp", "files"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_save_and_load(pair, tmp_path, layout, use_dcp, files):
    case = Case(plugin={**V2, "state_dict_type": layout})
    assert pair.run(round_trip, case, str(tmp_path / "new"), use_dcp) == [(True, True, sorted(files))] * 2


OF_FLAT = {
    "by shard": ("SHARDED_STATE_DICT", True, {"pytorch_model_fsdp_1", "optimizer_1"}),
    "whole": ("FULL_STATE_DICT", True, {"pytorch_model_fsdp_1.bin", "optimizer_1.bin"}),
    "flat parts": (
        "LOCAL_STATE_DICT",
        True,
        {*(f"pytorch_model_fsdp_1_rank{rank}.bin" for rank in (0, 1)), "optimizer_1"},
    ),
}


@pytest.mark.parametrize(("layout", "use_dcp", "files"), OF_FLAT.values(), ids=OF_FLAT.keys())
def test_save_and_load_flat_parameters(pair, tmp_path, layout, use_dcp, files):
    case = Case(plugin={**V1, "state_dict_type": layout})
    assert pair.run(round_trip, case, str(tmp_path / "new"), use_dcp) == [(True, True, sorted(files))] * 2


def adapters(case: Case, folder: str) -> list[Any]:
    """Save the adapters of a PEFT model, train on, and load them again."""
    from peft import LoraConfig, get_peft_model

    from accelerate.utils import load_fsdp_model, save_fsdp_model

    accelerator = accelerator_for(case)
    model = get_peft_model(language(0), LoraConfig(target_modules=["up"], r=2))
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    tokens = micro_batches(case, 0, 2)[0]
    seen = []
    for _ in range(2):
        accelerator.backward(loss_of(model, tokens))
        optimizer.step()
        optimizer.zero_grad()
        seen.append({name: value.clone() for name, value in accelerator.get_state_dict(model).items()})
        if len(seen) == 1:
            save_fsdp_model(accelerator.state.fsdp_plugin, accelerator, model, folder, adapter_only=True)
    load_fsdp_model(accelerator.state.fsdp_plugin, accelerator, model, folder, adapter_only=True)
    loaded = accelerator.get_state_dict(model)
    return [all(torch.equal(loaded[name], state[name]) for name in loaded) for state in seen]


@pytest.mark.libraries
@pytest.mark.parametrize("layout", ["SHARDED_STATE_DICT", "FULL_STATE_DICT"])
@pytest.mark.parametrize("plugin", [V2, V1], ids=["fsdp2", "fsdp1"])
def test_adapters_alone(pair, tmp_path, plugin, layout):
    library("peft")
    main, other = pair.run(adapters, Case(plugin={**plugin, "state_dict_type": layout}), str(tmp_path))
    assert main == [True, False]
    assert other == [True, True]  # the other process has no whole state to compare


def chosen_by_others(case: Case) -> list[str]:
    """Return what becomes a unit when a library has put another function in the place of ours."""
    from torch.distributed.fsdp import FSDPModule

    from accelerate.utils import fsdp_utils

    ours = fsdp_utils.fsdp2_prepare_auto_wrap_policy
    fsdp_utils.fsdp2_prepare_auto_wrap_policy = lambda plugin, model: lambda module: module is model.layers[1]
    try:
        _, model, _ = trained(case, 1)
    finally:
        fsdp_utils.fsdp2_prepare_auto_wrap_policy = ours
    return [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]


def test_another_function_may_choose_the_units(pair):
    assert pair.run(chosen_by_others, Case()) == [["", "embeddings", "layers.1", "norm", "head"]] * 2


def refused(case: Case, folder: str) -> str:
    from accelerate.utils import load_fsdp_model

    accelerator, model, _ = trained(case, 0)
    with pytest.raises(ValueError) as error:
        load_fsdp_model(accelerator.state.fsdp_plugin, accelerator, model, folder)
    return str(error.value)


def test_an_empty_folder_is_refused(pair, tmp_path):
    for text in pair.run(refused, Case(), str(tmp_path)):
        assert "model.safetensors is missing" in text


def states(case: Case) -> dict[str, Any]:
    """Ask the private functions that libraries replace, and the small ones."""
    from accelerate.utils import fsdp_utils

    accelerator, model, _ = trained(case, 0)
    rank = accelerator.process_index
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    shards = fsdp_utils._get_model_state_dict(model)
    full = fsdp_utils._get_model_state_dict(model, sd_options=whole)
    other = language(3).state_dict()
    fsdp_utils._set_model_state_dict(model, {name: value + 1 for name, value in other.items()})
    fsdp_utils.fsdp2_load_full_state_dict(accelerator, model, other if rank == 0 else {})
    loaded = fsdp_utils._get_model_state_dict(model, sd_options=whole)
    bare = build(case)
    chosen = fsdp_utils.fsdp2_prepare_auto_wrap_policy(accelerator.state.fsdp_plugin, bare)
    fsdp_utils.fsdp2_apply_ac(accelerator, bare)
    return {
        "sharded": all(hasattr(value, "to_local") for value in shards.values()),
        "whole": sorted(full) == (sorted(other) if rank == 0 else []),
        "loaded": all(torch.equal(loaded[name], other[name]) for name in loaded),
        "units": [name for name, module in bare.named_modules() if chosen(module)],
        "recomputed": [name for name, module in bare.named_modules() if "forward" in module.__dict__],
        "names": list(fsdp_utils.fsdp2_canonicalize_names({"_orig_mod.layers._checkpoint_wrapped_module.0": 1})),
        "ignored": len(fsdp_utils.get_parameters_from_modules("head", bare, "cpu")),
        "scaler": fsdp_utils.get_fsdp2_grad_scaler(device="cpu").is_enabled(),
    }


def test_the_functions_that_libraries_call(pair):
    blocks = ["layers.0", "layers.1", "layers.2"]
    expected = {
        "sharded": True,
        "whole": True,
        "loaded": True,
        "units": blocks,
        "recomputed": blocks,
        "names": ["layers.0"],
        "ignored": 1,
        "scaler": True,
    }
    assert pair.run(states, Case()) == [expected] * 2


def test_loading_on_the_main_process_is_switched_by_variables(monkeypatch):
    from accelerate.utils import disable_fsdp_ram_efficient_loading, enable_fsdp_ram_efficient_loading

    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")
    enable_fsdp_ram_efficient_loading()
    assert (os.environ["ACCELERATE_USE_FSDP"], os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"]) == ("True", "True")
    disable_fsdp_ram_efficient_loading()
    assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "False"
