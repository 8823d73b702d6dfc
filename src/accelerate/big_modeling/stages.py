"""Where a model is cut into stages that follow each other: so that they are of even size, or where a person says."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accelerate.base.messages import did_you_mean, message
from accelerate.big_modeling.sizes import class_names


def even_stages(model: torch.nn.Module, count: int, no_split: str | Iterable[str] | None = None) -> dict[str, int]:
    """Return the stage of each part of a model, so that the largest stage is as small as can be.

    Args:
        model: the model; its parts run in the order of their definition.
        count: how many stages there are.
        no_split: names of classes that are not to be split; by default those of repeated blocks, if there are enough.

    Raises:
        ValueError: there are fewer parts than stages.
    """
    parts = _parts(model, _repeated(model) if no_split is None else class_names(no_split))
    if no_split is None and _beginnings(parts) < count:
        parts = _parts(model, frozenset())
    if _beginnings(parts) < count:
        raise ValueError(_too_many_stages(model, count, _beginnings(parts)))
    low, high = max(part.size for part in parts), sum(part.size for part in parts)
    while low < high:
        limit = (low + high) // 2
        if _fill(parts, limit, count) is None:
            low = limit + 1
        else:
            high = limit
    stages = _fill(parts, low, count) or []
    return {part.name: stage for part, stage in zip(parts, stages, strict=True)}


@dataclass(frozen=True)
class _Part:
    """Something that is not split.

    Args:
        name: its name in the model.
        size: its bytes, but for what a part before it has.
        begins: whether a stage can begin with it: it is a module with weights of its own, not a single tensor.
    """

    name: str
    size: int
    begins: bool


def _parts(model: torch.nn.Module, whole: frozenset[str]) -> list[_Part]:
    """Return the parts that are not split, in the order of definition."""
    seen: set[int] = set()

    def size_of(tensors: Iterable[torch.Tensor]) -> int:
        new = [each for each in tensors if id(each) not in seen]
        seen.update(map(id, new))
        return sum(each.numel() * each.element_size() for each in new)

    def inside(module: torch.nn.Module, prefix: str) -> Iterator[_Part]:
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            yield _Part(prefix + name, size_of([tensor]), False)
        for name, child in module.named_children():
            if type(child).__name__ in whole or not list(child.children()):
                size = size_of([*child.parameters(), *child.buffers()])
                yield _Part(prefix + name, size, size > 0)
            else:
                yield from inside(child, f"{prefix}{name}.")

    return list(inside(model, ""))


def _beginnings(parts: Sequence[_Part]) -> int:
    """Return how many parts a stage can begin with."""
    return sum(part.begins for part in parts)


def _repeated(model: torch.nn.Module) -> frozenset[str]:
    """Return the classes of repeated blocks: those that a model of transformers names, and the members of lists."""
    named = getattr(model, "_no_split_modules", None) or ()
    lists = (each for each in model.modules() if isinstance(each, (torch.nn.ModuleList, torch.nn.Sequential)))
    blocks = (type(block).__name__ for each in lists for block in each if list(block.children()))
    return frozenset([*named, *blocks])


def _fill(parts: Sequence[_Part], limit: int, count: int) -> list[int] | None:
    """Return the stage of each part, filling one after the other up to `limit`; None if that takes too many stages."""
    stages: list[int] = []
    stage, used, begun, waiting = 0, 0, False, _beginnings(parts)
    for part in parts:
        is_needed = waiting <= count - 1 - stage  # for the stages to come, each of which begins with a module
        if begun and part.begins and (is_needed or used + part.size > limit):
            stage, used = stage + 1, 0
        used += part.size
        if used > limit or stage == count:
            return None
        begun = begun or part.begins
        waiting -= part.begins
        stages.append(stage)
    return stages


def first_of_stages(stages: Mapping[str, Any], model: torch.nn.Module) -> list[str]:
    """Return the names of the modules that stages but the first begin with.

    Args:
        stages: the stage of each part, in the order of definition.
        model: the model.
    """
    modules = dict(model.named_modules())
    found: dict[Any, str] = {}
    for name, stage in stages.items():
        if name in modules and any(True for _ in modules[name].parameters()):
            found.setdefault(stage, name)
    return list(found.values())[1:]


def check_split_points(model: torch.nn.Module, names: Sequence[str], count: int) -> None:
    """Refuse split points that a model has not, or that are too many or too few.

    Args:
        model: the model.
        names: modules that stages but the first begin with.
        count: how many stages there have to be.

    Raises:
        ValueError: it is refused.
    """
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules or not name:
            known = [each for each in modules if each]
            raise ValueError(
                _refused(f"split point {name!r}", "the model has no such module", did_you_mean(name, known))
            )
        if isinstance(modules[name], (torch.nn.ModuleList, torch.nn.ModuleDict)):
            do = f"name one in it, such as {name}.{next(iter(modules[name]._modules), '0')}"
            raise ValueError(_refused(f"split point {name!r}", "a list of modules doesn't run itself", do))
    if len(set(names)) != len(names) or len(names) != count - 1:
        given = f"{len(names)} split points ({', '.join(names)}) for {count} processes"
        why = f"they make {len(set(names)) + 1} parts, and each process has one"
        raise ValueError(_refused(given, why, f"name {count - 1}, or start {len(set(names)) + 1} processes"))


def _refused(given: str, why: str, do: str) -> str:
    return message(
        given=given,
        why=why,
        allowed='the names of modules that run, one less than there are processes; or "auto"',
        do=do,
    )


def _too_many_stages(model: torch.nn.Module, count: int, parts: int) -> str:
    return message(
        given=f"{count} processes for a {type(model).__name__}",
        why=f"it has {parts} parts that can be on a process of their own",
        allowed=f"at most {parts} processes",
        do="start fewer, or let classes be split that `no_split_module_classes` names",
    )


def split_at(module: torch.nn.Module, names: Sequence[str], example: tuple[torch.Tensor, ...]) -> Any:
    """Return the traced parts of a module, which is left as it was.

    Args:
        module: the module; it takes tensors.
        names: modules that parts but the first begin with.
        example: what it is called with.

    Raises:
        RuntimeError: it can't be traced.
    """
    from torch.distributed.pipelining import SplitPoint, pipeline

    marked = [module.get_submodule(name) for name in names]
    before = [dict(each.__dict__) for each in marked]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # what torch says to torch
            return pipeline(module, example, split_spec=dict.fromkeys(names, SplitPoint.BEGINNING))
    except RuntimeError as error:
        raise RuntimeError(_not_traced(error)) from error
    finally:
        for each, was in zip(marked, before, strict=True):
            for key in ("forward", "_orig_forward"):
                each.__dict__.pop(key, None)
                if key in was:
                    each.__dict__[key] = was[key]


def pass_in_order(stage: Any) -> Any:
    """Have a stage receive tensors in the order in which they are sent, and pass views that are not contiguous.

    A stage sends its outputs in their order, and receives its inputs in theirs. Between two stages that pass several
    tensors these are not always the same, and torch pairs what is sent and received by order alone.

    Args:
        stage: a stage of a traced model, which is returned.
    """
    numbers = [each.args[1] if each.target is operator.getitem else 0 for each in stage.node.args]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    receive, send = stage.get_fwd_recv_ops, stage.get_fwd_send_ops

    def get_fwd_recv_ops(chunk: int) -> list[Any]:
        for each in stage.args_recv_info[chunk]:
            if each.buffer is not None and not each.buffer.is_contiguous():
                each.buffer = torch.empty(each.buffer.shape, dtype=each.buffer.dtype, device=each.buffer.device)
        operations = receive(chunk)
        return [operations[index] for index in order] if operations else operations

    def get_fwd_send_ops(chunk: int) -> list[Any]:
        operations = send(chunk)
        for each in operations:
            each.tensor = each.tensor.contiguous()
        return operations

    stage.get_fwd_recv_ops, stage.get_fwd_send_ops = get_fwd_recv_ops, get_fwd_send_ops
    return stage


def _not_traced(error: RuntimeError) -> str:
    return message(
        given="a model for a pipeline",
        why=f"torch.export can't trace it as one graph: {error.__cause__ or error}",
        allowed="models whose forward depends on the shapes of inputs, not on their values",
        do="leave out what does, such as a cache, or use `dispatch_model` instead",
    )
