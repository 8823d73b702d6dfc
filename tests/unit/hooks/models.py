"""Small models that hooks are put on."""

from __future__ import annotations

import torch


class Block(torch.nn.Module):
    """Two layers, a parameter of its own, and a buffer that is not in the state dict."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.first = torch.nn.Linear(size, size)
        self.second = torch.nn.Linear(size, size)
        self.scale = torch.nn.Parameter(torch.ones(size))
        self.register_buffer("shift", torch.ones(size), persistent=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.first(value))) * self.scale + self.shift


class Model(torch.nn.Module):
    """An embedding, blocks, and a head that may be tied to the embedding."""

    def __init__(self, tied: bool = False, blocks: int = 2, size: int = 4) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, size)
        self.blocks = torch.nn.ModuleList([Block(size) for _ in range(blocks)])
        self.norm = torch.nn.BatchNorm1d(size)
        self.head = torch.nn.Linear(size, 5, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = self.embed(tokens)
        for block in self.blocks:
            value = block(value)
        return self.head(self.norm(value))


PARTS = ("embed", "blocks.0", "blocks.1", "norm", "head")
TOKENS = torch.tensor([0, 3, 1])


def devices(module: torch.nn.Module) -> dict[str, str]:
    """Return the kind of device of every parameter and buffer."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: tensor.device.type for name, tensor in named}
