"""Parameters of other kinds than most: of another dtype, or quantized.

What is gathered together is one message, and in the end one tensor, which has one dtype. Modules of another dtype
become units of their own; what is quantized, and not trained, is left alone: each rank keeps the whole of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import torch
from torch.distributed.tensor import DTensor

from accelerate.base.messages import message, warn_once


def is_quantized(parameter: torch.Tensor) -> bool:
    """Whether a parameter holds numbers packed by a library for quantization, which only that library understands."""
    if parameter.requires_grad or not isinstance(parameter, torch.nn.Parameter):
        return False
    packed = type(parameter) not in (torch.nn.Parameter, DTensor)
    return packed or not (parameter.is_floating_point() or parameter.is_complex())


def quantized_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules of `model` that hold quantized weights themselves."""
    return [module for module in model.modules() if any(map(is_quantized, module.parameters(recurse=False)))]


def apart(
    unit: Sequence[torch.nn.Module],
    own: Iterable[torch.nn.Module],
    ignored: Collection[torch.nn.Parameter],
    *,
    frozen: bool,
) -> list[torch.nn.Module]:
    """Return the modules in a unit that have to be units of their own, for their dtype is another one than most's.

    Args:
        unit: the modules that are gathered together.
        own: these, and the modules in them that are not part of a unit inside.
        ignored: parameters that belong to no unit.
        frozen: parameters that are not trained count too.
    """
    held = {module: list(_counted((module,), ignored, frozen)) for module in own}
    users = Counter(each for parameters in held.values() for each in parameters)
    sizes: Counter[torch.dtype] = Counter()
    for parameter in users:
        sizes[parameter.dtype] += parameter.numel()
    if len(sizes) < 2:
        return []
    usual = sizes.most_common(1)[0][0]
    return [
        module
        for module, parameters in held.items()
        if parameters and module not in unit and all(each.dtype != usual and users[each] == 1 for each in parameters)
    ]


def refuse_dtypes(
    unit: Sequence[torch.nn.Module],
    own: Iterable[torch.nn.Module],
    ignored: Collection[torch.nn.Parameter],
    *,
    frozen: bool,
) -> None:
    """Refuse a unit whose parameters have several dtypes.

    Raises:
        ValueError: they do.
    """
    dtypes: dict[torch.dtype, torch.nn.Parameter] = {}
    for parameter in _counted(own, ignored, frozen):
        dtypes.setdefault(parameter.dtype, parameter)
    if len(dtypes) > 1:
        names = {parameter: name for module in unit for name, parameter in module.named_parameters()}
        found = " and ".join(f"{str(dtype).removeprefix('torch.')} ({names[each]})" for dtype, each in dtypes.items())
        raise ValueError(
            message(
                given=f"a {type(unit[0]).__name__} with parameters in {found}",
                why="they are gathered together, in one dtype, and lie in one module or are used by several",
                allowed="one dtype for all parameters of a module that are not those of modules in it",
                do="convert the model to one dtype, or keep the parameter in a module of its own",
            )
        )


def _counted(
    modules: Iterable[torch.nn.Module], ignored: Collection[torch.nn.Parameter], frozen: bool
) -> Iterator[torch.nn.Parameter]:
    for module in modules:
        for parameter in module.parameters(recurse=False):
            if parameter not in ignored and (frozen or parameter.requires_grad):
                yield parameter


def widen(modules: Iterable[torch.nn.Module]) -> None:
    """Keep trainable parameters in fp32, which small updates need; they are computed with in the policy's dtype."""
    narrow = [
        parameter
        for module in modules
        for parameter in module._parameters.values()
        if parameter is not None and parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16)
    ]
    if narrow:
        warn_once(
            "Trainable parameters in fp16 or bf16 are kept in fp32 from now on, and computed with in the dtype of "
            "mixed precision: an update that is small against its parameter would be lost otherwise."
        )
    for parameter in narrow:
        parameter.data = parameter.data.float()
