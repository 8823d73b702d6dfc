"""Small helpers that scripts import: files, names, dictionaries, models."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from accelerate.base.ports import get_free_port, is_port_in_use
from accelerate.base.versions import compare_versions
from accelerate.checkpointing.objects import NUMPY_GLOBALS as TORCH_SAFE_GLOBALS
from accelerate.checkpointing.objects import load_object as load
from accelerate.checkpointing.objects import save_object
from accelerate.checkpointing.objects import without_shared_tensors as clean_state_dict_for_safetensors
from accelerate.logging import get_logger
from accelerate.state import PartialState
from accelerate.strategies.compile import (
    compile_regions,
    has_compiled_regions,
    has_repeated_blocks,
    is_compiled_module,
    is_repeated_blocks,
)
from accelerate.strategies.mesh import model_has_dtensor
from accelerate.strategies.unwrap import extract_model_from_parallel

__all__ = [
    "TORCH_SAFE_GLOBALS",
    "check_os_kernel",
    "clean_state_dict_for_safetensors",
    "compile_regions",
    "compile_regions_fsdp2",
    "convert_bytes",
    "extract_model_from_parallel",
    "get_free_port",
    "get_model_tp_size",
    "get_module_children_bottom_up",
    "get_pretty_name",
    "has_compiled_regions",
    "has_repeated_blocks",
    "is_compiled_module",
    "is_port_in_use",
    "is_repeated_blocks",
    "load",
    "merge_dicts",
    "model_has_dtensor",
    "recursive_getattr",
    "save",
    "wait_for_everyone",
]

logger = get_logger(__name__)

#: The oldest Linux kernel on which distributed runs are known not to hang.
OLDEST_KERNEL = "5.5.0"


def wait_for_everyone() -> None:
    """Return when every process has come here."""
    PartialState().wait_for_everyone()


def save(obj: Any, f: str | Path, save_on_each_node: bool = False, safe_serialization: bool = False) -> None:
    """Write `obj` to `f` on the main process, or on the main process of each node.

    Args:
        safe_serialization: write tensors as safetensors; otherwise with `torch.save`.
    """
    state = PartialState()
    if state.is_local_main_process if save_on_each_node else state.is_main_process:
        save_object(obj, f, safe_serialization=safe_serialization)


def get_pretty_name(obj: Any) -> str:
    """Return the qualified name of a class or function, of the class of anything else."""
    named = obj if hasattr(obj, "__qualname__") or hasattr(obj, "__name__") else type(obj)
    return getattr(named, "__qualname__", None) or getattr(named, "__name__", None) or str(obj)


def merge_dicts(source: Mapping[str, Any], destination: dict[str, Any]) -> dict[str, Any]:
    """Copy `source` into `destination`, dictionary by dictionary, and return it."""
    for key, value in source.items():
        if isinstance(value, Mapping):
            merge_dicts(value, destination.setdefault(key, {}))
        else:
            destination[key] = value
    return destination


def convert_bytes(size: float) -> str:
    """Return a number of bytes as a person reads it, in units of 1024: `convert_bytes(1536)` is "1.5 KB"."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1024:
            return f"{round(size, 2)} {unit}"
        size /= 1024
    return f"{round(size, 2)} PB"


def check_os_kernel() -> None:
    """Warn when the Linux kernel is so old that distributed runs may hang."""
    kernel = platform.release().split("-")[0]
    if platform.system() == "Linux" and compare_versions(kernel.rstrip("+"), "<", OLDEST_KERNEL):
        logger.warning(
            f"This machine runs Linux {kernel}; before {OLDEST_KERNEL} distributed runs may hang. Upgrade the kernel.",
            main_process_only=True,
        )


def recursive_getattr(obj: Any, attr: str) -> Any:
    """Return the attribute at a dotted path: `recursive_getattr(model, "layer.weight")`."""
    return reduce(getattr, attr.split("."), obj)


def get_model_tp_size(model: torch.nn.Module) -> int | None:
    """Return over how many processes a model of transformers is divided; None when it is not, or doesn't say."""
    distributed = getattr(getattr(model, "config", None), "distributed_config", None)
    size = getattr(model, "tp_size", None) or getattr(distributed, "tp_size", None)
    return None if size is None else int(size)


def compile_regions_fsdp2(module: torch.nn.Module, **compile_kwargs: Any) -> torch.nn.Module:
    """Compile the repeated blocks of a sharded model in place, and return it; see `compile_regions`."""
    return compile_regions(module, **compile_kwargs)


def get_module_children_bottom_up(model: torch.nn.Module, return_fqns: bool = False) -> list[Any]:
    """Return the modules of `model`, children before their parents, `model` itself last.

    Args:
        return_fqns: return pairs of name and module instead.
    """
    found: list[Any] = []

    def visit(module: torch.nn.Module, name: str) -> None:
        for child_name, child in module.named_children():
            visit(child, f"{name}.{child_name}" if name else child_name)
        found.append((name, module) if return_fqns else module)

    visit(model, "")
    return found
