"""Linear layers with weights in few bits by torchao: the weight becomes a tensor of one of its classes."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from accelerate.base.messages import did_you_mean, message
from accelerate.base.packages import is_torchao_available
from accelerate.big_modeling.quantization_layers import Quantizer, missing_library
from accelerate.config.enums import CustomDtype
from accelerate.config.quantization import TorchAoQuantizationConfig

#: What a weight can be stored as by name: the configuration of torchao, and what an element takes.
KINDS: dict[str, tuple[str, Any]] = {
    "int8_weight_only": ("Int8WeightOnlyConfig", torch.int8),
    "float8_weight_only": ("Float8WeightOnlyConfig", CustomDtype.FP8),
    "int4_weight_only": ("Int4WeightOnlyConfig", CustomDtype.INT4),
    "intx_weight_only": ("IntxWeightOnlyConfig", torch.int8),
}


class TorchAoQuantizer(Quantizer):
    """Stores the weights of linear layers as torchao does."""

    def __init__(self, config: TorchAoQuantizationConfig) -> None:
        super().__init__(config)
        if not is_torchao_available():
            raise missing_library("torchao", "torchao")
        self.library: Any = importlib.import_module("torchao.quantization")
        kind = config.quant_type
        self.recipe: Any = self._by_name(kind)() if isinstance(kind, str) else kind

    def _by_name(self, name: str) -> Any:
        """Return the class of a configuration of torchao.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in KINDS:
            raise ValueError(
                message(
                    given=f"quant_type={name!r}",
                    why="there is no such type",
                    allowed=f"{', '.join(map(repr, KINDS))}, or a configuration object of torchao",
                    do=did_you_mean(name, KINDS),
                )
            )
        return getattr(self.library, KINDS[name][0])

    @property
    def stored_as(self) -> Any:
        """What the configuration says an element takes; a byte if it is of a kind that is not known here."""
        kind = type(self.recipe).__name__
        return next((stored for name, stored in KINDS.values() if name == kind), torch.int8)

    def quantize(self, linear: torch.nn.Linear, device: torch.device) -> torch.nn.Module:
        """Return the layer itself, with its weight quantized on `device`.

        Raises:
            RuntimeError: torchao can't do it on this device.
        """
        linear.requires_grad_(False)
        linear.weight.data = linear.weight.data.to(device=device, dtype=self.config.torch_dtype)
        try:
            self.library.quantize_(linear, self.recipe)
        except (ImportError, RuntimeError, AssertionError, NotImplementedError) as error:
            raise RuntimeError(_refused(self.recipe, device, error)) from error
        return linear


def _refused(recipe: Any, device: torch.device, error: BaseException) -> str:
    return message(
        given=f"{type(recipe).__name__} of torchao for a layer on {device}",
        why=str(error) or type(error).__name__,
        allowed="what torchao has for this kind of device; int8_weight_only and float8_weight_only run on every one",
        do="choose another `quant_type`, or another device",
    )
