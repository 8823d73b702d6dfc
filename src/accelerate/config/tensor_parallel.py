"""Settings of tensor parallel: :class:`TorchTensorParallelConfig` with the plan, and the plugin of earlier releases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accelerate.base.messages import message
from accelerate.config.env import fill
from accelerate.config.option import shared
from accelerate.config.parallelism_settings import ParallelismSettings

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass
class TorchTensorParallelConfig:
    """How layers are divided over processes.

    Args:
        enable_async_tp: overlap communication with matrix products; not part of this version.
        plan: patterns of module names, in which `*` stands for one part of a dotted name, with a style for each:
            "colwise", "rowwise", "colwise_gather_output", "rowwise_split_input", "embedding_rowwise", or an object of
            `torch.distributed.tensor.parallel`. By default PARALLELISM_CONFIG_TP_PLAN, or the model's own `tp_plan`.

    Raises:
        NotImplementedError: `enable_async_tp`.
        ValueError: a plan that is no mapping of patterns to styles.
    """

    enable_async_tp: bool = False
    plan: Mapping[str, Any] | None = shared(ParallelismSettings, "tp_plan", None)

    def __post_init__(self) -> None:
        fill(self)
        if self.enable_async_tp:
            raise NotImplementedError(
                message(
                    given="enable_async_tp=True",
                    why="this version does not overlap the communication of tensor parallel with computation",
                    allowed="enable_async_tp=False",
                    do="leave it out",
                )
            )


@dataclass
class TorchTensorParallelPlugin:
    """The size of the axis, as earlier releases were told it; `ParallelismConfig(tp_size=...)` says the same.

    Args:
        tp_size: over how many processes layers are divided.
        torch_device_mesh: a mesh to take instead of building one; not part of this version.

    Raises:
        ValueError: a size below 1.
        NotImplementedError: `torch_device_mesh`.
    """

    tp_size: int = 1
    torch_device_mesh: DeviceMesh | None = None

    def __post_init__(self) -> None:
        if self.tp_size < 1:
            raise ValueError(
                message(
                    given=f"tp_size={self.tp_size}",
                    why="layers are divided over at least one process",
                    allowed="whole numbers from 1 on",
                    do="pass tp_size=1 for layers that are not divided",
                )
            )
        if self.torch_device_mesh is not None:
            raise NotImplementedError(
                message(
                    given="torch_device_mesh in a TorchTensorParallelPlugin",
                    why="there is one mesh for all axes, which the Accelerator builds",
                    allowed="tp_size",
                    do="leave it out, and load models with device_mesh=accelerator.torch_device_mesh['tp']",
                )
            )
