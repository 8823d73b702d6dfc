"""The enums and plugin dataclasses, as scripts import them."""

from __future__ import annotations

import torch

from accelerate.comm.structure import TensorInformation
from accelerate.config.autocast import AutocastKwargs
from accelerate.config.context_parallel import TorchContextParallelConfig
from accelerate.config.data_loader import DataLoaderConfiguration
from accelerate.config.ddp import DistributedDataParallelKwargs
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import (
    BaseEnum,
    ComputeEnvironment,
    CustomDtype,
    DDPCommunicationHookType,
    DistributedType,
    DynamoBackend,
    EnumWithContains,
    FP8BackendType,
    LoggerType,
    PrecisionType,
    RNGType,
    SageMakerDistributedType,
)
from accelerate.config.fsdp import FullyShardedDataParallelPlugin
from accelerate.config.gradient_accumulation import GradientAccumulationPlugin
from accelerate.config.kwargs import KwargsHandler
from accelerate.config.pipeline_parallel import PipelineParallelConfig
from accelerate.config.process_group import InitProcessGroupKwargs
from accelerate.config.profile import ProfileKwargs
from accelerate.config.project import ProjectConfiguration
from accelerate.config.quantization import BnbQuantizationConfig, TorchAoQuantizationConfig
from accelerate.config.scaler import GradScalerKwargs
from accelerate.config.sequence_parallel import DeepSpeedSequenceParallelConfig
from accelerate.config.tensor_parallel import TorchTensorParallelConfig, TorchTensorParallelPlugin

__all__ = [
    "AutocastKwargs",
    "BaseEnum",
    "BnbQuantizationConfig",
    "ComputeEnvironment",
    "CustomDtype",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DeepSpeedSequenceParallelConfig",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "DynamoBackend",
    "EnumWithContains",
    "FP8BackendType",
    "FullyShardedDataParallelPlugin",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "KwargsHandler",
    "LoggerType",
    "PipelineParallelConfig",
    "PrecisionType",
    "ProfileKwargs",
    "ProjectConfiguration",
    "RNGType",
    "SageMakerDistributedType",
    "TensorInformation",
    "TorchAoQuantizationConfig",
    "TorchContextParallelConfig",
    "TorchDynamoPlugin",
    "TorchTensorParallelConfig",
    "TorchTensorParallelPlugin",
    "get_module_class_from_name",
]


def get_module_class_from_name(module: torch.nn.Module, name: str) -> type[torch.nn.Module] | None:
    """Return the class called `name` of `module` or of one of its submodules, None when there is none."""
    return next((type(each) for each in module.modules() if type(each).__name__ == name), None)
