"""A model and its checkpoint in every format, small enough for any test."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn


class Net(nn.Module):
    """An embedding, two layers, a norm with buffers, a head that is tied to the embedding, and a buffer not saved."""

    def __init__(self, tied: bool = True, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4, dtype=dtype)
        self.layers = nn.ModuleList([nn.Linear(4, 4, dtype=dtype) for _ in range(2)])
        self.norm = nn.BatchNorm1d(4, dtype=dtype)
        self.head = nn.Linear(4, 6, bias=False, dtype=dtype)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.ones(4, dtype=dtype), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = self.embed(tokens)
        for layer in self.layers:
            value = torch.relu(layer(value)) + self.shift
        return self.head(self.norm(value))


TOKENS = torch.tensor([0, 5, 2])
PARTS = ("embed", "layers.0", "layers.1", "norm", "head")


def trained(seed: int = 0, **options) -> Net:
    """Return a model in evaluation mode that no other is like."""
    torch.manual_seed(seed)
    net = Net(**options).eval()
    net.norm.num_batches_tracked.fill_(70000)
    net.norm.running_mean.normal_()
    return net.requires_grad_(False)


def tensors_of(net: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state dict as a checkpoint has it: each tensor once."""
    names = {tensor.data_ptr(): name for name, tensor in reversed(net.state_dict().items())}
    return {name: tensor for name, tensor in net.state_dict().items() if names[tensor.data_ptr()] == name}


def save(net: nn.Module, path: Path) -> Path:
    """Write one file, in the format that its name says."""
    if path.suffix == ".safetensors":
        save_file(tensors_of(net), path, metadata={"format": "pt"})
    else:
        torch.save(dict(net.state_dict()), path)
    return path


def save_sharded(net: nn.Module, folder: Path) -> Path:
    """Write a folder with two safetensors files and their index."""
    tensors = list(tensors_of(net).items())
    shards = {"one.safetensors": dict(tensors[:3]), "two.safetensors": dict(tensors[3:])}
    for name, shard in shards.items():
        save_file(shard, folder / name, metadata={"format": "pt"})
    weight_map = {name: file for file, shard in shards.items() for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def kinds(net: nn.Module) -> dict[str, str]:
    """Return the kind of device of every tensor."""
    named = [*net.named_parameters(remove_duplicate=False), *net.named_buffers()]
    return {name: tensor.device.type for name, tensor in named}
