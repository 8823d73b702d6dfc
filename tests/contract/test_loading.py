"""One process reads a checkpoint and the others are sent it, plain models and sharded ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelerate import PartialState, init_empty_weights, load_checkpoint_and_dispatch, load_checkpoint_in_model

from .conftest import world_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 4, bias=False)


def trained() -> Net:
    torch.manual_seed(0)
    net = Net()
    net.norm.running_mean.normal_()
    net.norm.num_batches_tracked.fill_(70000)
    return net


def load(path: str, kind: str, strict: bool) -> dict[str, torch.Tensor]:
    """Load with a path that only the first process knows, and return the state."""
    state = PartialState(cpu=True)
    torch.manual_seed(1 + state.process_index)
    net = Net()
    where = path if state.is_main_process else "/there/is/no/such/checkpoint"
    if kind == "sharded":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(net, mesh=init_device_mesh("cpu", (state.num_processes,)))
    load_once = load_checkpoint_and_dispatch if kind == "dispatch" else load_checkpoint_in_model
    load_once(net, where, broadcast_from_rank0=True, strict=strict)
    tensors = {name: getattr(each, "full_tensor", lambda each=each: each)() for name, each in net.state_dict().items()}
    return {name: each.detach().clone() for name, each in tensors.items()}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", ["plain", "sharded", "dispatch"])
def test_one_process_reads_for_all(size, kind, tmp_path: Path) -> None:
    wanted = trained().state_dict()
    save_file(wanted, tmp_path / "model.safetensors")
    for state in world_of(size).run(load, str(tmp_path), kind, True):
        assert state.keys() == wanted.keys()
        for name, each in wanted.items():
            assert torch.equal(state[name], each), name


def refused(path: str) -> str:
    state = PartialState(cpu=True)
    try:
        load_checkpoint_in_model(Net(), path if state.is_main_process else "/none", broadcast_from_rank0=True)
    except Exception as error:
        return str(error)
    return ""


def test_what_the_reader_refuses_all_refuse(pair, tmp_path: Path) -> None:
    wrong = {**trained().state_dict(), "first.weight": torch.zeros(2, 2)}
    save_file(wrong, tmp_path / "model.safetensors")
    for said in pair.run(refused, str(tmp_path)):
        assert "first.weight" in said


def test_without_others_it_is_refused(tmp_path: Path) -> None:
    save_file(trained().state_dict(), tmp_path / "model.safetensors")
    with init_empty_weights():
        net = Net()
    with pytest.raises(RuntimeError, match="no one to send"):
        load_checkpoint_in_model(net, tmp_path, broadcast_from_rank0=True)
