"""Single objects on disk: written beside their final name and moved there, so that no reader sees half a file."""

from __future__ import annotations

import codecs
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from accelerate.base.messages import message
from accelerate.checkpointing.durable import Sink


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
    return {names[0]: state_dict[names[0]].detach().contiguous() for names in groups_of_names(state_dict)}


def groups_of_names(state_dict: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Return the names in `state_dict`, those of one and the same tensor (tied weights) together."""
    groups: dict[Any, list[str]] = {}
    for name, tensor in state_dict.items():
        alone = tensor.numel() == 0 or tensor.device.type == "meta"  # nothing that could be shared
        groups.setdefault(name if alone else place_of(tensor), []).append(name)
    return list(groups.values())


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return where the values of a tensor lie, and how."""
    if hasattr(tensor, "to_local"):  # sharded: what is tied is one object under all its names
        return (id(tensor),)
    storage = tensor.untyped_storage().data_ptr()
    return tensor.device, storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def plain(value: Any) -> Any:
    """Return `value` with numpy numbers in lists, tuples and dictionaries as Python's, which any reader rebuilds."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {plain(key): plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


def write_object(sink: Sink, obj: Any) -> None:
    """Write `obj` into `sink` with `torch.save`.

    The checksums inside of its format are left out: the sink takes a faster one of the whole file.
    """
    try:
        with without_crc32():
            torch.save(plain(obj), cast(IO[bytes], sink))  # all that it asks of a file is `write` and `flush`
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch wonders why the file is too short
            raise error.__context__ from None
        raise


@contextmanager
def without_crc32() -> Iterator[None]:
    """Let `torch.save` leave out CRC-32, where it can be told to."""
    tell = getattr(torch.serialization, "set_crc32_options", None)
    if tell is None:
        yield
        return
    before = torch.serialization.get_crc32_options()
    tell(False)
    try:
        yield
    finally:
        tell(before)


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


def unsafe_globals(file: str | Path) -> list[str]:
    """Return the classes and functions in a file of `torch.save` that `load_object` refuses to call."""
    with torch.serialization.safe_globals(list(NUMPY_GLOBALS)):
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))


def _numpy_globals() -> Iterator[Any]:
    """Yield what a pickled numpy array or scalar is made of: plain data, safe to rebuild."""
    core: Any = getattr(np, "_core", None) or np.core
    yield from (core.multiarray._reconstruct, core.multiarray.scalar, np.ndarray, np.dtype, codecs.encode)
    yield from {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"}


#: What `load_object` may rebuild besides tensors and plain Python.
NUMPY_GLOBALS = tuple(_numpy_globals())
