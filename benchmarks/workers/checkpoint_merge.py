"""Merging the shards of a model into one file: `torch.distributed.checkpoint` and `save_file` beside the library.

Uses the public API only, so that the same file measures either library.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from checkpoint import Times, alternate, build, settle, watched
from safetensors.torch import save_file
from timing import worker_parser, write
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from accelerate.utils import merge_fsdp_weights


def merge_by_hand(folder: Path, output: Path) -> None:
    """Read all tensors of the model, and write them."""
    described = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in described.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    output.mkdir()
    names = {key.removeprefix("model."): tensor for key, tensor in tensors.items()}
    save_file(names, output / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Measure time and memory."""
    parser = worker_parser()
    parser.add_argument("--gigabytes", type=float, default=1.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="accelerate-bench-") as name:
        shards, output = Path(name) / "shards", Path(name) / "output"
        model, _ = build(args.gigabytes, stepped=False)
        dcp.save({"model": model.state_dict()}, checkpoint_id=shards, no_dist=True)
        os.environ.setdefault("RANK", "0")

        def before() -> None:
            shutil.rmtree(output, ignore_errors=True)
            settle(args.gigabytes)

        def by_hand() -> None:
            merge_by_hand(shards, output)

        def library() -> None:
            merge_fsdp_weights(str(shards), str(output))

        by_hand()
        before()
        library()
        found: Times = alternate(by_hand, library, args.blocks, before)
        write(args.result, {"merge": found | watched(by_hand, library, before)})


if __name__ == "__main__":
    main()
