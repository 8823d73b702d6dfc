"""Which optional packages are installed: one table, and an `is_<name>_available` function for every row.

A package counts when its module can be found and its distribution has metadata (a stray folder of the same name has
none); it is not imported. Questions about devices, which need torch, are answered in `accelerate.devices.capability`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accelerate.base.environ import parse_flag_from_env
from accelerate.base.versions import compare_versions, is_torch_version


@dataclass(frozen=True)
class Package:
    """One optional package.

    Args:
        module: the name it is imported by.
        distribution: the name it is installed by, when that is another.
        at_least: the oldest version that will do.
        below: the first version that won't do any more.
    """

    module: str
    distribution: str | None = None
    at_least: str | None = None
    below: str | None = None

    def is_installed(self) -> bool:
        """Whether the package is there, in a version that will do."""
        name = self.distribution or self.module
        if not _is_package_available(self.module, name):
            return False
        return (self.at_least is None or compare_versions(name, ">=", self.at_least)) and (
            self.below is None or compare_versions(name, "<", self.below)
        )


def _is_package_available(pkg_name: str, metadata_name: str | None = None) -> bool:
    """Whether module `pkg_name` can be found and its distribution has metadata."""
    if importlib.util.find_spec(pkg_name) is None:
        return False
    try:
        importlib.metadata.metadata(metadata_name or pkg_name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# Name in `is_<name>_available` -> the packages of which any one will do.
PACKAGES: dict[str, tuple[Package, ...]] = {
    "4bit_bnb": (Package("bitsandbytes", at_least="0.39.0"),),
    "8bit_bnb": (Package("bitsandbytes", at_least="0.37.2"),),
    "aim": (Package("aim", below="4.0.0"),),
    "amdsmi": (Package("amdsmi"),),
    "boto3": (Package("boto3"),),
    "clearml": (Package("clearml"),),
    "comet_ml": (Package("comet_ml"),),
    "datasets": (Package("datasets"),),
    "deepspeed": (Package("deepspeed"),),
    "dvclive": (Package("dvclive"),),
    "import_timer": (Package("import_timer"),),
    "lomo": (Package("lomo_optim"),),
    "matplotlib": (Package("matplotlib"),),
    "mlflow": (Package("mlflow"), Package("mlflow", "mlflow-skinny")),
    "msamp": (Package("msamp", "ms-amp"),),
    "pandas": (Package("pandas"),),
    "peft": (Package("peft"),),
    "pynvml": (Package("pynvml"), Package("pynvml", "nvidia-ml-py")),
    "pytest": (Package("pytest"),),
    "sagemaker": (Package("sagemaker"),),
    "schedulefree": (Package("schedulefree"),),
    "swanlab": (Package("swanlab"),),
    "tensorboard": (Package("tensorboard"), Package("tensorboardX")),
    "timm": (Package("timm"),),
    "torchao": (Package("torchao", at_least="0.6.1"),),
    "torchdata": (Package("torchdata"),),
    "torchdata_stateful_dataloader": (Package("torchdata", at_least="0.8.0"),),
    "torchvision": (Package("torchvision"),),
    "tqdm": (Package("tqdm"),),
    "trackio": (Package("trackio"),),
    "transformer_engine": (Package("transformer_engine", "transformer-engine"),),
    "transformers": (Package("transformers"),),
    "triton": (Package("triton"),),
    "wandb": (Package("wandb"),),
}


def _check(name: str, packages: tuple[Package, ...]) -> Callable[[], bool]:
    """Return the function that answers for one row of the table."""

    def check() -> bool:
        return any(package.is_installed() for package in packages)

    wanted = " or ".join(dict.fromkeys(package.distribution or package.module for package in packages))
    limits = [f"{word} {version}" for word, version in _limits(packages[0])]
    check.__name__ = check.__qualname__ = f"is_{name}_available"
    check.__doc__ = f"Whether {' '.join([wanted, *limits])} is installed."
    return check


def _limits(package: Package) -> list[tuple[str, str]]:
    """Return the limits on a package's version, in words."""
    limits = (("at least", package.at_least), ("below", package.below))
    return [(word, version) for word, version in limits if version]


globals().update({f"is_{name}_available": _check(name, packages) for name, packages in PACKAGES.items()})

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[[], bool]: ...


def is_bnb_available(min_version: str | None = None) -> bool:
    """Whether bitsandbytes is installed, in version `min_version` or later."""
    return Package("bitsandbytes", at_least=min_version).is_installed()


def is_bitsandbytes_multi_backend_available() -> bool:
    """Whether bitsandbytes is installed and works on more than CUDA."""
    if not is_bnb_available():
        return False
    return "multi_backend" in getattr(importlib.import_module("bitsandbytes"), "features", set())


def is_megatron_lm_available() -> bool:
    """Whether the run asks for Megatron-LM and megatron-core at least 0.8.0 is installed."""
    wanted = parse_flag_from_env("ACCELERATE_USE_MEGATRON_LM")
    return wanted and Package("megatron", "megatron-core", at_least="0.8.0").is_installed()


def is_numpy_available(min_version: str = "1.25.0") -> bool:
    """Whether numpy is installed, in version `min_version` or later."""
    return Package("numpy", at_least=min_version).is_installed()


def is_pippy_available() -> bool:
    """Whether torch has pipeline parallelism (`torch.distributed.pipelining`, since 2.4)."""
    return is_torch_version(">=", "2.4.0")


def is_rich_available() -> bool:
    """Whether rich is installed and ACCELERATE_ENABLE_RICH asks for its tracebacks."""
    return Package("rich").is_installed() and parse_flag_from_env("ACCELERATE_ENABLE_RICH")


def is_weights_only_available() -> bool:
    """Whether torch can load checkpoints as plain data (`weights_only`, dependable since 2.4)."""
    return is_torch_version(">=", "2.4.0")
