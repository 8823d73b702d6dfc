"""Values go straight into the tensors there are, from one file as from shards; loading a model sees no difference."""

from __future__ import annotations

import pytest
import torch

from accelerate.checkpointing.model_records import ModelRecord, model_records
from accelerate.checkpointing.records import OptimizerRecord
from accelerate.checkpointing.sharded import write_shards
from accelerate.checkpointing.source import Source
from accelerate.comm.collectives import Alone

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
NAMES = [["0.weight", "0.bias", "1.weight", "1.bias"]]


def network(value, dtype=torch.float32):
    """Return two layers, the second of which lies turned in memory, and buffers of other kinds."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)).to(dtype)
    model[1].weight = torch.nn.Parameter(torch.empty(4, 4, dtype=dtype).t())
    model.register_buffer("count", torch.tensor(0))
    model.register_buffer("parts", torch.zeros(4)[1:3])
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + value)
    return model


def written(folder, model, form):
    """Write a model as `form` says."""
    if form == "shards":
        write_shards(folder / "pytorch_model_fsdp_0", {"model": model.state_dict()}, Alone("cpu"))
    else:
        ModelRecord(0, model.state_dict(), safe=form == "safetensors").save_file(folder, model.state_dict())
    return Source(folder, threads=2)


def restored(model, source):
    (record,) = model_records([model.state_dict()], [model.load_state_dict], True, [model])
    assert record.check(source) == []
    record.restore(source)


def same(one, other):
    return all(torch.equal(one.state_dict()[name], value) for name, value in other.state_dict().items())


@pytest.mark.parametrize("form", ["safetensors", "pickle", "shards"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_keeps_its_memory(tmp_path, form, dtype):
    model, other = network(7), network(1, dtype)
    places = [parameter.data_ptr() for parameter in other.parameters()]
    restored(other, written(tmp_path, model, form))
    assert same(other, model.to(dtype))
    assert [parameter.data_ptr() for parameter in other.parameters()] == places
    assert other[1].weight.stride() == (1, 4)


@pytest.mark.parametrize("form", ["safetensors", "shards"])
def test_what_a_model_changes_while_loading_is_changed(tmp_path, form):
    model, other, calls = network(7), network(1), []

    def double(module, state, *rest):
        state["0.weight"] = state["0.weight"] * 2

    other.register_load_state_dict_pre_hook(double)
    other.register_load_state_dict_post_hook(lambda *arguments: calls.append(arguments))
    restored(other, written(tmp_path, model, form))
    assert torch.equal(other[0].weight, model[0].weight * 2)
    assert torch.equal(other[1].weight, model[1].weight)
    assert len(calls) == 1


@pytest.mark.parametrize("form", ["safetensors", "shards"])
def test_values_can_be_assigned(tmp_path, form):
    model, other = network(7), network(1)
    source = written(tmp_path, model, form)
    source.model_kwargs = {"assign": True}
    restored(other, source)
    assert same(other, model)


@pytest.mark.parametrize("form", ["safetensors", "shards"])
def test_what_has_another_shape_is_left_alone(tmp_path, form):
    source, other = written(tmp_path, network(7), form), network(1)
    source.strict = False
    other[0] = torch.nn.Linear(2, 4)
    before = other[0].weight.detach().clone()
    (record,) = model_records([other.state_dict()], [other.load_state_dict], True, [other])
    assert len(record.check(source)) == 1
    record.restore(source)
    assert torch.equal(other[0].weight, before)
    assert torch.equal(other[1].bias, network(7)[1].bias)


def stepped(model):
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("has_state", [True, False])
def test_states_of_parameters_are_read_into_those_there_are(tmp_path, has_state):
    saved = stepped(network(7))
    named = dict(zip(NAMES[0], saved.state.values(), strict=True))
    groups = [{**group, "params": NAMES[0]} for group in saved.state_dict()["param_groups"]]
    write_shards(tmp_path / "optimizer_0", {"optimizer": {"state": named, "param_groups": groups}}, Alone("cpu"))
    model = network(1)
    optimizer = stepped(model) if has_state else torch.optim.AdamW(model.parameters())
    places = [state["exp_avg"].data_ptr() for state in optimizer.state.values()]
    for state in optimizer.state.values():
        state["exp_avg"].zero_()
    record, source = OptimizerRecord(0, optimizer, NAMES), Source(tmp_path)
    assert record.check(source) == []
    record.restore(source)
    found = list(optimizer.state.values())
    assert all(torch.equal(mine["exp_avg"], its["exp_avg"]) for mine, its in zip(found, named.values(), strict=True))
    assert not has_state or [state["exp_avg"].data_ptr() for state in found] == places
    assert [state["step"] for state in found] == [1.0] * 4


def test_what_a_folder_of_shards_lacks_is_said(tmp_path):
    write_shards(tmp_path / "optimizer_0", {"optimizer": {"state": {}, "param_groups": []}}, Alone("cpu"))
    record = OptimizerRecord(0, stepped(network(1)), NAMES)
    assert record.check(Source(tmp_path)) == ["optimizer_0 has parameter groups of [] parameters, the optimizer of [4]"]
    (tmp_path / "optimizer_0" / ".metadata").write_bytes(b"")
    (problem,) = record.check(Source(tmp_path))
    assert problem.startswith("optimizer_0 can't be read")
