"""What loading, offloading and planning large models costs, in time and in memory."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import WORKERS, Pairs, Row, Side, Suite, environment, run_worker, time_command

MAPPED = "`safetensors` mapped and assigned"
PLAIN = "the plain forward"

# row -> (line of the table, blocks, calls per block)
CASES: dict[str, tuple[Row, int, int]] = {
    "load_cpu": (
        Row("`load_checkpoint_and_dispatch` to the CPU, each page touched", f"{MAPPED}, touched", "<= 1.05x", 1.05),
        6,
        1,
    ),
    "load_cpu_call": (Row("`load_checkpoint_and_dispatch` to the CPU, the call", MAPPED, "<= 1.5x", 1.5), 6, 1),
    "load_in_place": (
        Row("`load_checkpoint_in_model` into memory", "`load_file` and `load_state_dict`", "<= 1.0x", 1.0),
        5,
        1,
    ),
    "load_disk": (
        Row(
            "`load_checkpoint_and_dispatch`, all on disk, each page touched", f"{MAPPED}, touched", "<= 1.1x", limit=1.1
        ),
        3,
        1,
    ),
    "forward_disk": (
        Row("forward of 8 tokens, every layer on disk", f"{PLAIN}, weights mapped", "<= 1.15x, + 2 blocks", 1.15),
        2,
        1,
    ),
    "offload_disk": (Row("`disk_offload` forward, 0.84 GB fp32", PLAIN, "<= 1.3x", 1.3), 8, 1),
    "offload_disk_leaves": (
        Row("`disk_offload` forward, 484 small leaves", PLAIN, "<= 1.5x, +10 us per leaf (+4.84 ms)", 1.5),
        20,
        4,
    ),
    "offload_cpu_leaves": (Row("`cpu_offload` forward, 484 small leaves", PLAIN, "<= 1.3x", 1.3), 20, 4),
    "offload_call": (Row("`disk_offload()` of 0.84 GB", "writing the bytes", "<= 1.1x", 1.1), 4, 1),
    "plan_200": (
        Row("`infer_auto_device_map`, 200 layers (2,606 modules)", "one walk that sums sizes", "<= 1.5x", 1.5),
        10,
        2,
    ),
    "plan_1540": (
        Row("`infer_auto_device_map`, 1,540 layers (20,026 modules)", "one walk that sums sizes", "< 0.5 s"),
        3,
        1,
    ),
    "empty_16": (Row("`init_empty_weights`, 16 layers", '`torch.device("meta")`', "<= 1.3x", 1.3), 8, 3),
    "empty_64": (Row("`init_empty_weights`, 64 layers", '`torch.device("meta")`', "<= 1.3x", 1.3), 5, 2),
    "cold_in_place": (
        Row("`load_checkpoint_in_model`, nothing in the page cache", "reading the files in order", "<= 1.11x", 1.11),
        2,
        1,
    ),
    "cold_cpu": (
        Row(
            "`load_checkpoint_and_dispatch` to the CPU, each page touched, nothing in the page cache",
            "reading the files in order",
            "<= 1.11x",
            1.11,
        ),
        2,
        1,
    ),
}

ESTIMATE = Row("`accelerate estimate-memory FOLDER`, offline", "importing torch", "< 1 s + imports")


@functools.cache
def checkpoint() -> Path:
    """Return the folder of the checkpoint (1.88 GB of bf16 in 5 files), which is written once and kept."""
    folder = Path(tempfile.gettempdir()) / "accelerate-bench-checkpoint" / "llama"
    if not (folder / "model.safetensors.index.json").is_file():
        print("  writing the checkpoint", file=sys.stderr)
        script = WORKERS / "big_models_network.py"
        subprocess.run([sys.executable, str(script), str(folder)], env=environment(), timeout=300, check=True)
    return folder


def warm(folder: Path) -> None:
    """Have the system hold all files of a folder in memory."""
    for file in sorted(folder.iterdir()):
        with open(file, "rb") as content:
            while content.read(2**24):
                pass


def measure(side: Side) -> dict[str, Pairs]:
    """Run each row once under one library, each in a process of its own."""
    found: dict[str, Pairs] = {}
    for row, (_, blocks, calls) in CASES.items():
        warm(checkpoint())
        options = ["--row", row, "--blocks", str(blocks), "--calls", str(calls), "--checkpoint", str(checkpoint())]
        found |= run_worker(side, "big_models.py", *options)
    return found | estimate(side)


def estimate(side: Side) -> dict[str, Pairs]:
    """Time `estimate-memory` on a folder; nothing where it fails without a network."""
    command = [str(side.scripts / "accelerate"), "estimate-memory", str(configured())]
    try:
        taken = time_command(command, HF_HUB_OFFLINE="1")
    except RuntimeError as error:
        print(f"  {side.name}: estimate-memory failed: {str(error).splitlines()[-1]}", file=sys.stderr)
        return {}
    return {"estimate": Pairs([time_command([side.python, "-c", "import torch"])], [taken])}


@functools.cache
def configured() -> Path:
    """Return a folder with the checkpoint and a configuration of the same shape."""
    folder = checkpoint()
    shape = {"hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 16, "num_attention_heads": 16}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, **shape}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


SUITE = Suite(
    name="big_models",
    title="Models larger than the device",
    rows={row: line for row, (line, _, _) in CASES.items()} | {"estimate": ESTIMATE},
    measure=measure,
    rounds=2,
)
