"""The names of the files in a checkpoint, which are those of 1.15.

The first object of a kind has the bare name, the further ones are numbered from 1: `optimizer.bin`, `optimizer_1.bin`.
What is written by every rank carries its rank.
"""

from __future__ import annotations

import re
from pathlib import Path

from accelerate.base.constants import (
    FSDP_MODEL_NAME,
    MODEL_NAME,
    OPTIMIZER_NAME,
    RNG_STATE_NAME,
    SAFE_MODEL_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
)
from accelerate.base.messages import message

MANIFEST = "manifest.json"
LOADERS = "data_loaders.bin"  #: where every prepared data loader stands; 1.15 has no such file
SCALER = SCALER_NAME


def numbered(name: str, index: int, suffix: str) -> str:
    """Return the file name of object number `index`: "optimizer.bin", "optimizer_1.bin"."""
    return f"{name}{suffix}" if index == 0 else f"{name}_{index}{suffix}"


def model_names(index: int) -> tuple[str, ...]:
    """Return the names that model number `index` can have, the one to prefer first; the last is a folder of shards."""
    return (
        numbered(SAFE_MODEL_NAME, index, ".safetensors"),
        numbered(MODEL_NAME, index, ".bin"),
        full_model_name(index),
        f"{FSDP_MODEL_NAME}_{index}",
    )


def optimizer_names(index: int) -> tuple[str, ...]:
    """Return the names that optimizer number `index` can have; the last is a folder of shards."""
    return optimizer_name(index), f"{OPTIMIZER_NAME}_{index}"


def full_model_name(index: int) -> str:
    """Return the file name of sharded model number `index`, written as a whole."""
    return numbered(FSDP_MODEL_NAME, index, ".bin")


def optimizer_name(index: int) -> str:
    """Return the file name of optimizer number `index`."""
    return numbered(OPTIMIZER_NAME, index, ".bin")


def scheduler_name(index: int) -> str:
    """Return the file name of scheduler number `index`."""
    return numbered(SCHEDULER_NAME, index, ".bin")


def custom_name(index: int) -> str:
    """Return the file name of registered object number `index`."""
    return f"custom_checkpoint_{index}.pkl"


def rng_name(rank: int) -> str:
    """Return the file name of the random states of a rank."""
    return f"{RNG_STATE_NAME}_{rank}.pkl"


def gradients_name(rank: int) -> str:
    """Return the file name of the gradients that a rank has accumulated since the last update."""
    return f"gradients_{rank}.bin"


#: The names of all files of a kind, whatever their number.
PATTERNS = {
    "models": re.compile(r"model(_\d+)?\.safetensors|pytorch_model(_fsdp)?(_\d+)?\.bin|pytorch_model_fsdp_\d+"),
    "optimizers": re.compile(r"optimizer(_\d+)?\.bin|optimizer_\d+"),
    "schedulers": re.compile(r"scheduler(_\d+)?\.bin"),
    "custom": re.compile(r"custom_checkpoint_\d+\.pkl"),
    "rng": re.compile(r"random_states_\d+\.pkl"),
    "gradients": re.compile(r"gradients_\d+\.bin"),
}


_OTHERS = re.compile(r"manifest\.json|data_loaders\.bin|scaler\.pt|dl_state_dict(_\d+)?\.bin|sampler(_\d+)?\.bin")


def is_checkpoint_file(name: str) -> bool:
    """Return whether a file of this name is part of a checkpoint, of this release or of 1.15."""
    return any(pattern.fullmatch(name) for pattern in (*PATTERNS.values(), _OTHERS))


def names_of(part: str, folder: Path) -> set[str]:
    """Return the names of all files of a kind that are in `folder`."""
    pattern = PATTERNS[part]
    return {path.name for path in folder.iterdir() if pattern.fullmatch(path.name)}


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file that `folder` lists by name.

    Raises:
        ValueError: the name leads out of the folder.
    """
    relative = Path(name)
    if not name or relative.is_absolute() or ".." in relative.parts:
        raise ValueError(
            message(
                given=f"the file name {name!r} in {folder}",
                why="it leads out of the folder that lists it",
                allowed="names below the folder itself",
                do="don't load this folder unless you know where it comes from",
            )
        )
    return folder / relative
