"""Writes an offload folder, or reads one; it runs alike with this release and with 1.15.

Called as `python offloading.py write|read FOLDER`. It prints one line of JSON: what the weights are, bit by bit, and
what a model computes with them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from accelerate import disk_offload, dispatch_model, load_checkpoint_and_dispatch
from accelerate.utils import OffloadedWeightsLoader, offload_state_dict

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
)


def network() -> nn.Module:
    """Return a model with parameters of two dtypes and buffers, one of them a scalar."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    layers[1].running_mean.normal_()
    return layers.requires_grad_(False).eval()


def tensors() -> dict[str, torch.Tensor]:
    """Return tensors of every dtype, and one without dimensions."""
    torch.manual_seed(1)
    found = {str(dtype).removeprefix("torch."): (torch.randn(3, 5) * 9).to(dtype) for dtype in DTYPES}
    return found | {"scalar": torch.tensor(2.5), "transposed": torch.randn(4, 3).t()}


def bits(tensor: torch.Tensor) -> list[object]:
    """Return dtype, shape and bytes of a tensor."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return [str(tensor.dtype), list(tensor.shape), flat.view(torch.uint8).tolist()]


def write(folder: Path) -> nn.Module:
    """Write tensors of every dtype, a model, and a model that was loaded from a checkpoint; return the model."""
    offload_state_dict(folder / "tensors", tensors())
    checkpoint = folder / "model.safetensors"
    save_file(network().state_dict(), checkpoint, metadata={"format": "pt"})
    with torch.device("meta"):
        empty = network()
    places = {"0": "disk", "1": "cpu", "2": "disk"}
    load_checkpoint_and_dispatch(empty, str(checkpoint), device_map=places, offload_folder=str(folder / "loaded"))
    return disk_offload(network(), folder / "model", execution_device=torch.device("cpu"), offload_buffers=True)


def read(folder: Path) -> nn.Module:
    """Return a model without memory whose weights are in the folder."""
    with torch.device("meta"):
        empty = network()
    places = {"0": "disk", "1": "disk", "2": "disk"}
    return dispatch_model(empty, places, offload_dir=folder / "model", offload_buffers=True)


def main(action: str, folder: Path) -> None:
    """Do it, and print what there is."""
    model = {"write": write, "read": read}[action](folder)
    found = {
        part: {name: bits(tensor) for name, tensor in sorted(OffloadedWeightsLoader(save_folder=folder / part).items())}
        for part in ("tensors", "loaded", "model")
    }
    found["output"] = bits(model(torch.arange(8.0).reshape(2, 4)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
