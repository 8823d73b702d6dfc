"""Single objects on disk: written beside their final name and moved there, so that no reader sees half a file."""

from __future__ import annotations

import codecs
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from accelerate.base.messages import message


def check_stateful(objects: Sequence[Any]) -> None:
    """Refuse objects that have no state to save.

    Raises:
        ValueError: some have no `state_dict` and `load_state_dict`; all of them are named with their position.
    """
    offenders = [
        f"{index}: {each!r}"
        for index, each in enumerate(objects)
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict"))
    ]
    if offenders:
        raise ValueError(
            message(
                given="objects that can't be checkpointed, at position " + ", ".join(offenders),
                why="their state is read with `state_dict()` and restored with `load_state_dict()`, which they lack",
                allowed="objects with both methods, such as modules, optimizers and schedulers",
                do="give these classes the two methods, or leave the objects out",
            )
        )


def save_object(obj: Any, file: str | Path, *, safe_serialization: bool = False) -> None:
    """Write `obj` to `file`, replacing it in one step.

    Args:
        obj: for `safe_serialization` a dict of tensors, else anything that `torch.save` takes.
    """
    file = Path(file)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    os.close(handle)
    try:
        if safe_serialization:
            from safetensors.torch import save_file  # only who writes such files pays for it

            save_file(without_shared_tensors(obj), name, metadata={"format": "pt"})
        else:
            torch.save(obj, name)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def without_shared_tensors(state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return `state_dict` with contiguous tensors and each shared one under its first name only.

    A safetensors file holds every tensor once; a tied weight is found again under the name that stays.
    """
    seen: set[tuple[Any, ...]] = set()
    kept = {}
    for name, tensor in state_dict.items():
        key = (
            tensor.device,
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
        )
        if tensor.numel() == 0 or tensor.device.type == "meta" or key not in seen:
            seen.add(key)
            kept[name] = tensor.detach().contiguous()
    return kept


def _umask() -> int:
    """Return the process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load_object(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
    """Read what `save_object` wrote with `torch.save`; nothing that the file contains is executed.

    Args:
        f: a path or a file object.
        map_location: where tensors go, see `torch.load`.
        kwargs: handed on to `torch.load`; `weights_only=False` lets the file run code of its own.
    """
    kwargs.setdefault("weights_only", True)
    with torch.serialization.safe_globals(list(NUMPY_GLOBALS)):
        return torch.load(f, map_location=map_location, **kwargs)


def _numpy_globals() -> Iterator[Any]:
    """Yield what a pickled numpy array or scalar is made of: plain data, safe to rebuild."""
    core: Any = getattr(np, "_core", None) or np.core
    yield from (core.multiarray._reconstruct, core.multiarray.scalar, np.ndarray, np.dtype, codecs.encode)
    yield from {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"}


#: What `load_object` may rebuild besides tensors and plain Python.
NUMPY_GLOBALS = tuple(_numpy_globals())
