"""How the weights of a model are stored in few bits: one dataclass for each library that does it.

What a dtype is called may be written out ("bf16", "float32"), so that a setting can stand in a file. The layers that
are left as they are go by name, or by part of one: "lm_head" is every module of that name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accelerate.base.messages import did_you_mean, message
from accelerate.config.enums import CustomDtype

#: Short names of the dtypes that are computed in.
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

FOUR_BIT = ("fp4", "nf4")


@dataclass
class BnbQuantizationConfig:
    """Linear layers in 8 or 4 bits by bitsandbytes.

    Args:
        load_in_8bit: store weights as int8 (LLM.int8(), arXiv:2208.07339).
        llm_int8_threshold: inputs larger than this are computed with in the dtype that they have; 8 bits only.
        load_in_4bit: store weights in 4 bits (QLoRA, arXiv:2305.14314).
        bnb_4bit_quant_type: "fp4", or "nf4" for weights that are distributed normally.
        bnb_4bit_use_double_quant: quantize the scales too.
        bnb_4bit_compute_dtype: "fp16", "bf16", "fp32" or a torch dtype; 4 bits only.
        torch_dtype: the dtype of all other weights; by default fp16.
        skip_modules: names of modules to leave as they are; by default the output layer and what has tied weights.
        keep_in_fp32_modules: names of modules that stay in fp32.

    Raises:
        ValueError: neither 8 nor 4 bits are asked for, or both, or a type that there is not.
        TypeError: names that are no list, or a flag that is no bool.
    """

    load_in_8bit: bool = False
    llm_int8_threshold: float = 6.0
    load_in_4bit: bool = False
    bnb_4bit_quant_type: str = "fp4"
    bnb_4bit_use_double_quant: bool = False
    bnb_4bit_compute_dtype: Any = "fp16"
    torch_dtype: Any = None
    skip_modules: list[str] | None = None
    keep_in_fp32_modules: list[str] | None = None

    def __post_init__(self) -> None:
        for name in ("load_in_8bit", "load_in_4bit", "bnb_4bit_use_double_quant"):
            _check_flag(name, getattr(self, name))
        if self.load_in_8bit == self.load_in_4bit:
            raise ValueError(
                message(
                    given=f"load_in_8bit={self.load_in_8bit}, load_in_4bit={self.load_in_4bit}",
                    why="weights are stored in one of two widths, and this names none or both",
                    allowed="exactly one of the two",
                    do="pass `load_in_8bit=True` or `load_in_4bit=True`",
                )
            )
        _check_choice("bnb_4bit_quant_type", self.bnb_4bit_quant_type, FOUR_BIT)
        self.bnb_4bit_compute_dtype = floating_dtype("bnb_4bit_compute_dtype", self.bnb_4bit_compute_dtype)
        self.torch_dtype = floating_dtype("torch_dtype", self.torch_dtype or "fp16")
        check_names("skip_modules", self.skip_modules)
        check_names("keep_in_fp32_modules", self.keep_in_fp32_modules)
        self.keep_in_fp32_modules = self.keep_in_fp32_modules or []
        #: What a quantized weight takes, for plans.
        self.target_dtype: Any = _torch().int8 if self.load_in_8bit else CustomDtype.INT4


@dataclass
class TorchAoQuantizationConfig:
    """Linear layers with weights in few bits by torchao.

    Args:
        quant_type: "int8_weight_only", "float8_weight_only", "int4_weight_only", "intx_weight_only", or a
            configuration object of torchao.
        torch_dtype: the dtype of all other weights; by default what the model has.
        skip_modules: names of modules to leave as they are; by default the output layer and what has tied weights.
        keep_in_fp32_modules: names of modules that stay in fp32.

    Raises:
        ValueError: a dtype that there is not.
        TypeError: names that are no list.
    """

    quant_type: Any = "int8_weight_only"
    torch_dtype: Any = None
    skip_modules: list[str] | None = None
    keep_in_fp32_modules: list[str] | None = None

    def __post_init__(self) -> None:
        if self.torch_dtype is not None:
            self.torch_dtype = floating_dtype("torch_dtype", self.torch_dtype)
        check_names("skip_modules", self.skip_modules)
        check_names("keep_in_fp32_modules", self.keep_in_fp32_modules)
        self.keep_in_fp32_modules = self.keep_in_fp32_modules or []


def floating_dtype(option: str, value: Any) -> Any:
    """Return the torch dtype that an option names.

    Args:
        option: the name of the option.
        value: "fp16", "float16", or the dtype itself.

    Raises:
        ValueError: it is no dtype of floats.
    """
    torch = _torch()
    found = getattr(torch, DTYPES.get(value, value), None) if isinstance(value, str) else value
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(
            message(
                given=f"{option}={value!r}",
                why="weights that are not quantized, and what is computed, have a dtype of floats",
                allowed=f"{', '.join(map(repr, DTYPES))}, or a torch dtype",
                do=did_you_mean(str(value), [*DTYPES, *DTYPES.values()]),
            )
        )
    return found


def check_names(option: str, value: Any) -> None:
    """Refuse anything but a list of names, or None.

    Raises:
        TypeError: it is something else; a single name is the usual slip.
    """
    if value is None or (isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)):
        return
    raise TypeError(
        message(
            given=f"{option}={value!r}",
            why="it would be read as something else than names of modules",
            allowed="a list of names",
            do=f"write `{option}=[{value!r}]`" if isinstance(value, str) else "list the names as text",
        )
    )


def _check_flag(option: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(
            message(
                given=f"{option}={value!r}",
                why="this is a switch",
                allowed="True or False",
                do=f"write `{option}={bool(value)}`",
            )
        )


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(
            message(
                given=f"{option}={value!r}",
                why="there is no such type",
                allowed=", ".join(map(repr, choices)),
                do=did_you_mean(str(value), choices),
            )
        )


def _torch() -> Any:
    """Return torch, which is imported when a configuration is made, not with this module."""
    import torch

    return torch
