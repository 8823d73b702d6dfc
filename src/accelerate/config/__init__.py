"""Settings: one declaration each, and the doors by which their values come in.

`option` declares; `flags`, `files`, `env` and `questionnaire` are the doors; `resolve` says which door wins. One file
per plugin dataclass holds its settings, and `cluster` what the config file is. Names are imported lazily, so that a
room which reads one of them doesn't pay for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerate._lazy import lazy_exports

if TYPE_CHECKING:
    from accelerate.config.autocast import AutocastKwargs as AutocastKwargs
    from accelerate.config.cluster import ClusterConfig as ClusterConfig
    from accelerate.config.data_loader import DataLoaderConfiguration as DataLoaderConfiguration
    from accelerate.config.ddp import DistributedDataParallelKwargs as DistributedDataParallelKwargs
    from accelerate.config.dynamo import TorchDynamoPlugin as TorchDynamoPlugin
    from accelerate.config.gradient_accumulation import GradientAccumulationPlugin as GradientAccumulationPlugin
    from accelerate.config.kwargs import KwargsHandler as KwargsHandler
    from accelerate.config.load import load_config as load_config
    from accelerate.config.option import Option as Option
    from accelerate.config.process_group import InitProcessGroupKwargs as InitProcessGroupKwargs
    from accelerate.config.profile import ProfileKwargs as ProfileKwargs
    from accelerate.config.project import ProjectConfiguration as ProjectConfiguration
    from accelerate.config.resolve import Settings as Settings
    from accelerate.config.sagemaker import SageMakerConfig as SageMakerConfig
    from accelerate.config.scaler import GradScalerKwargs as GradScalerKwargs

_HOMES = {
    "autocast": ["AutocastKwargs"],
    "cluster": ["ClusterConfig"],
    "data_loader": ["DataLoaderConfiguration"],
    "ddp": ["DistributedDataParallelKwargs"],
    "dynamo": ["TorchDynamoPlugin"],
    "gradient_accumulation": ["GradientAccumulationPlugin"],
    "kwargs": ["KwargsHandler"],
    "load": ["load_config"],
    "option": ["Option"],
    "process_group": ["InitProcessGroupKwargs"],
    "profile": ["ProfileKwargs"],
    "project": ["ProjectConfiguration"],
    "resolve": ["Settings"],
    "sagemaker": ["SageMakerConfig"],
    "scaler": ["GradScalerKwargs"],
}

__getattr__, __dir__, __all__ = lazy_exports(
    __name__, {f"{__name__}.{module}": names for module, names in _HOMES.items()}
)
