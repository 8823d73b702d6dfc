"""Which layers of a model are stored in few bits, and what it takes of a library to do it.

A :class:`Quantizer` makes one layer out of one linear layer whose weight is in memory, or mapped from its file, so that
never more than one layer is there in full. Each library is one of them, found by the class of its configuration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch

from accelerate.base.messages import message, nearest, warn_once
from accelerate.base.registry import Registry
from accelerate.big_modeling.tied import find_tied_parameters


class Quantizer(ABC):
    """Stores linear layers in few bits.

    Args:
        config: the configuration of the library.
    """

    #: Whether its layers can be kept outside of the device that they run on, and be brought in for each forward.
    offloads: ClassVar[bool] = False

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    @abstractmethod
    def stored_as(self) -> Any:
        """What an element of a weight takes: a dtype, or a `CustomDtype`."""

    @abstractmethod
    def quantize(self, linear: torch.nn.Linear, device: torch.device) -> torch.nn.Module:
        """Return a linear layer in few bits.

        Args:
            linear: the layer, with its weight in memory or mapped.
            device: where the quantized weight goes.
        """

    def offload(self, layer: torch.nn.Module) -> torch.nn.Module:
        """Return a quantized layer with its weight on the CPU, to be brought in for each forward; if `offloads`."""
        return layer

    def finish(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return a model whose layers are quantized, with a note of that on it."""
        return model


#: By the name of the class of a configuration.
QUANTIZERS: Registry[type[Quantizer]] = Registry("quantizers")
QUANTIZERS.register("BnbQuantizationConfig", "accelerate.big_modeling.quantization_bnb:BnbQuantizer")
QUANTIZERS.register("TorchAoQuantizationConfig", "accelerate.big_modeling.quantization_torchao:TorchAoQuantizer")


def quantizer_for(config: Any) -> Quantizer:
    """Return what quantizes as `config` says.

    Raises:
        TypeError: it is no configuration of a library that is known here.
        ImportError: the library is not installed.
    """
    name = type(config).__name__
    if name not in QUANTIZERS:
        raise TypeError(
            message(
                given=f"a {name} for how to quantize",
                why="it belongs to no library that is known here",
                allowed=", ".join(QUANTIZERS.names()),
                do="pass one of these, from `accelerate.utils`",
            )
        )
    return QUANTIZERS.get(name)(config)


def missing_library(library: str, extra: str) -> ImportError:
    """Return the error for a library that is not installed."""
    return ImportError(
        message(
            given=f"a configuration for {library}",
            why=f"{library} is not installed",
            allowed="any environment that has it",
            do=f'`pip install "accelerate[{extra}]"`',
        )
    )


def get_keys_to_not_convert(model: torch.nn.Module) -> list[str]:
    """Return the names of modules that lose too much in few bits: the output layer, and those with tied weights.

    Args:
        model: the model. Nothing is left out of one that is a single part, or of which only the base is given.
    """
    tied = [name for group in find_tied_parameters(model) for name in group]
    if not tied and _is_base_model(model):
        return []
    last = [name for name, _ in model.named_children()][-1:]
    if not last:
        return []
    names = [*dict.fromkeys([*(_without_tensor(name) for name in tied), *last])]
    return [name for name in names if name]


def _is_base_model(model: torch.nn.Module) -> bool:
    """Whether a model of transformers is the part without output layer."""
    prefix = getattr(model, "base_model_prefix", None)
    return isinstance(prefix, str) and bool(prefix) and not hasattr(model, prefix)


def _without_tensor(name: str) -> str:
    """Return the module of a parameter."""
    return name.rpartition(".")[0]


def is_named(name: str, wanted: Iterable[str]) -> bool:
    """Whether a module, or one around it, is among those named; a name may be the last part, or parts, of a path."""
    return any(f".{each}." in f".{name}." for each in wanted)


def linear_layers(
    model: torch.nn.Module, skipped: Sequence[str], path: str = ""
) -> Iterator[tuple[str, torch.nn.Linear]]:
    """Yield the linear layers of a model, but for those named, with their names.

    Args:
        model: the model; layers that are quantized already don't count.
        skipped: names of modules.
        path: where `model` is in a larger one that these names are of.
    """
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear and not is_named(f"{path}.{name}", skipped):
            yield name, module


def check_named(model: torch.nn.Module, option: str, names: Sequence[str] | None) -> None:
    """Warn about names that no module of a model has.

    Args:
        model: the model.
        option: what the names were given as.
        names: names of modules.
    """
    known = [name for name, _ in model.named_modules() if name]
    for each in names or ():
        if not any(is_named(name, [each]) for name in known):
            near = nearest(each, known)
            hint = f"; {near!r} is near" if near else ""
            warn_once(f"{option} names {each!r}, which the model has not{hint}.", stacklevel=4)


def replace(model: torch.nn.Module, name: str, layer: torch.nn.Module) -> torch.nn.Module:
    """Put `layer` in the place of the module `name` of a model; return the model, which it is itself without a name."""
    if not name:
        return layer
    model.set_submodule(name, layer)
    return model
