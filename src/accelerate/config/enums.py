"""The named choices of the public API: what kind of run, which precision, which compiler backend, tracker, and so on.

Their text forms are part of that API: `DistributedType`, `ComputeEnvironment` and their like print as `Class.MEMBER`,
the ones built on :class:`BaseEnum` print their value, and those that are also `str` equal it.
"""

from __future__ import annotations

import enum
from typing import Any


class EnumWithContains(enum.EnumMeta):
    """Let `value in SomeEnum` accept raw values, on every Python version."""

    def __contains__(cls, item: object) -> bool:
        try:
            cls(item)
        except ValueError:
            return False
        return True


class BaseEnum(enum.Enum, metaclass=EnumWithContains):
    """An enum that prints its value and can list its values."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def list(cls) -> list[str]:
        """Return the values as text, in order."""
        return [str(member) for member in cls]


class _ClassNamed(str, enum.Enum):
    """A str that prints as `Class.MEMBER`, in f-strings too, whatever the Python version."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class DistributedType(_ClassNamed):
    """What kind of distributed run this is: a label for other people's code to read."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    MEGATRON_LM = "MEGATRON_LM"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"


class SageMakerDistributedType(_ClassNamed):
    """How an Amazon SageMaker job is distributed."""

    NO = "NO"
    DATA_PARALLEL = "DATA_PARALLEL"
    MODEL_PARALLEL = "MODEL_PARALLEL"


class FP8BackendType(_ClassNamed):
    """The library that does 8-bit floating-point arithmetic."""

    NO = "NO"
    TE = "TE"
    MSAMP = "MSAMP"
    AO = "AO"


class ComputeEnvironment(_ClassNamed):
    """Where a run happens."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"


class _ValueNamed(str, BaseEnum):
    """A str that prints its value, in f-strings too, whatever the Python version."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


class DynamoBackend(_ValueNamed):
    """The backends of `torch.compile`."""

    NO = "NO"
    EAGER = "EAGER"
    AOT_EAGER = "AOT_EAGER"
    INDUCTOR = "INDUCTOR"
    AOT_TS_NVFUSER = "AOT_TS_NVFUSER"
    NVPRIMS_NVFUSER = "NVPRIMS_NVFUSER"
    CUDAGRAPHS = "CUDAGRAPHS"
    OFI = "OFI"
    FX2TRT = "FX2TRT"
    ONNXRT = "ONNXRT"
    TENSORRT = "TENSORRT"
    AOT_TORCHXLA_TRACE_ONCE = "AOT_TORCHXLA_TRACE_ONCE"
    TORCHXLA_TRACE_ONCE = "TORCHXLA_TRACE_ONCE"
    TVM = "TVM"
    HPU_BACKEND = "HPU_BACKEND"
    NEURON = "NEURON"


class PrecisionType(_ValueNamed):
    """The number formats that training can compute in."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class DDPCommunicationHookType(BaseEnum):
    """How DistributedDataParallel compresses gradients before it sums them."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


class LoggerType(BaseEnum):
    """The experiment trackers that can be named in `log_with`."""

    ALL = "all"
    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    COMETML = "comet_ml"
    MLFLOW = "mlflow"
    CLEARML = "clearml"
    DVCLIVE = "dvclive"
    SWANLAB = "swanlab"


class RNGType(BaseEnum):
    """The random number generators that can be kept equal across processes."""

    TORCH = "torch"
    CUDA = "cuda"
    MLU = "mlu"
    SDAA = "sdaa"
    MUSA = "musa"
    NPU = "npu"
    XLA = "xla"
    XPU = "xpu"
    HPU = "hpu"
    NEURON = "neuron"
    GENERATOR = "generator"


class CustomDtype(enum.Enum):
    """Number formats that torch has no dtype for, for the sizes of models."""

    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"


def value_of(item: Any) -> Any:
    """Return the value of an enum member; anything else as it is."""
    return item.value if isinstance(item, enum.Enum) else item
