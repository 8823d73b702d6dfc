"""How the processes of a run share out data and model: :class:`ParallelismConfig`, the sizes of the axes of one mesh.

Ranks are numbered so that those of the last axis are neighbours: axes that divide a model come last, where
communication is fastest. The mesh is built once, by the first `Accelerator`, or by `build_device_mesh` from a script.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from accelerate.base.messages import did_you_mean, message, warn_once
from accelerate.config.env import from_env
from accelerate.config.mesh_axes import AXES, VIEWS, nearest_sizes
from accelerate.config.option import shared
from accelerate.config.parallelism_settings import ParallelismSettings

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass
class ParallelismConfig:
    """The sizes of the axes of a mesh; what is None comes from PARALLELISM_CONFIG_*, or is 1.

    Args:
        dp_replicate_size: how many replicas.
        dp_shard_size: over how many processes each replica is sharded.
        tp_size: over how many processes layers are divided.
        cp_size: over how many processes sequences are divided.
        cp_backend: what divides them.
        sp_size: over how many processes DeepSpeed's sequence parallel divides sequences; excludes `cp_size`.
        sp_backend: what divides them.
        tp_handler, cp_handler, sp_handler, pp_handler: settings of these axes.
        pp_size: over how many processes the sequence of layers is divided.

    Raises:
        ValueError: a size below 1, or sizes that exclude each other.
    """

    dp_replicate_size: int = shared(ParallelismSettings, "dp_replicate_size", None)
    dp_shard_size: int = shared(ParallelismSettings, "dp_shard_size", None)
    tp_size: int = shared(ParallelismSettings, "tp_size", None)
    cp_size: int = shared(ParallelismSettings, "cp_size", None)
    cp_backend: str = shared(ParallelismSettings, "cp_backend", None)
    sp_size: int = shared(ParallelismSettings, "sp_size", None)
    sp_backend: str = shared(ParallelismSettings, "sp_backend", None)
    tp_handler: Any = None
    cp_handler: Any = None
    sp_handler: Any = None
    pp_size: int = shared(ParallelismSettings, "pp_size", None)
    pp_handler: Any = None

    #: The mesh, once it is built; no field.
    device_mesh: ClassVar[Any] = None

    def __post_init__(self) -> None:
        for name, value in from_env(ParallelismConfig, vars(self)).items():
            setattr(self, name, value)
        self._sizes = {axis: getattr(self, f"{axis}_size") for axis in AXES}
        if self.cp_size > 1 and self.sp_size > 1:
            raise ValueError(
                message(
                    given=f"cp_size={self.cp_size} and sp_size={self.sp_size}",
                    why="both divide sequences, each in its own way",
                    allowed="one of them greater than 1",
                    do="set the other to 1",
                )
            )
        if self.tp_size > 1 and self.tp_handler is None:
            from accelerate.config.tensor_parallel import TorchTensorParallelConfig

            self.tp_handler = TorchTensorParallelConfig()
        if self.cp_size > 1 and self.cp_handler is None:
            from accelerate.config.context_parallel import TorchContextParallelConfig

            self.cp_handler = TorchContextParallelConfig()
        if self.sp_size > 1 and self.sp_handler is None:
            from accelerate.config.sequence_parallel import DeepSpeedSequenceParallelConfig

            self.sp_handler = DeepSpeedSequenceParallelConfig()
        if self.pp_size > 1 and self.pp_handler is None:
            from accelerate.config.pipeline_parallel import PipelineParallelConfig

            self.pp_handler = PipelineParallelConfig()
        for axis in ("tp", "cp", "sp", "pp"):
            if getattr(self, f"{axis}_handler") is not None and self._sizes[axis] == 1:
                warn_once(f"{axis}_handler has no effect: {axis}_size is 1.")

    def __repr__(self) -> str:
        lines = [f"{each.name}={getattr(self, each.name)}" for each in fields(self)]
        return "ParallelismConfig(\n\t" + ",\n\t".join([*lines, f"total_size={self.total_size}"]) + ")"

    def to_json(self) -> str:
        """Return the settings as JSON, without the settings of single axes."""
        plain = (str, int)
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({name: value for name, value in found.items() if isinstance(value, plain)}, sort_keys=True)

    def _named(self, axes: Iterable[str]) -> list[str]:
        """Return those of `axes` that have more than one rank, in the order of the mesh."""
        wanted = set(axes)
        # Libraries that replace __post_init__ fill _sizes with the axes of 1.15, or with more.
        return [axis for axis in AXES if axis in wanted and self._sizes.get(axis, 1) > 1]

    @property
    def active_mesh_dims(self) -> list[str]:
        """The axes of the mesh: those with more than one rank."""
        return self._named(AXES)

    @property
    def dp_dim_names(self) -> list[str]:
        """The axes along which data differs."""
        return self._named(("dp_replicate", "dp_shard"))

    @property
    def non_dp_dim_names(self) -> list[str]:
        """The axes along which data is the same."""
        return self._named(("pp", "tp", "cp", "sp"))

    @property
    def dp_shard_cp_dim_names(self) -> list[str]:
        """The axes that parameters are sharded over."""
        return self._named(("dp_shard", "cp"))

    @property
    def dp_cp_dim_names(self) -> list[str]:
        """The axes over which losses are averaged."""
        return self._named(("dp_replicate", "dp_shard", "cp"))

    @property
    def fsdp_dim_names(self) -> list[str]:
        """The names of the mesh that FSDP is given: replicas, if there are any, and shards."""
        return [*self._named(("dp_replicate",)), "dp_shard_cp"]

    @property
    def total_size(self) -> int:
        """How many processes the axes have together."""
        return math.prod(self._sizes.values())

    @property
    def data_parallel_size(self) -> int:
        """How many processes see different data."""
        return int(self._sizes["dp_replicate"] * self._sizes["dp_shard"])

    @property
    def non_data_parallel_size(self) -> int:
        """How many processes see the same data."""
        return self.total_size // self.data_parallel_size

    @property
    def dp_replicate_enabled(self) -> bool:
        """Whether there are replicas."""
        return bool(self._sizes["dp_replicate"] > 1)

    @property
    def dp_shard_enabled(self) -> bool:
        """Whether parameters are sharded."""
        return bool(self._sizes["dp_shard"] > 1)

    @property
    def tp_enabled(self) -> bool:
        """Whether layers are divided."""
        return bool(self._sizes["tp"] > 1)

    @property
    def cp_enabled(self) -> bool:
        """Whether sequences are divided for context parallel."""
        return bool(self._sizes["cp"] > 1)

    @property
    def sp_enabled(self) -> bool:
        """Whether sequences are divided for sequence parallel."""
        return bool(self._sizes["sp"] > 1)

    @property
    def pp_enabled(self) -> bool:
        """Whether the sequence of layers is divided."""
        return bool(self._sizes.get("pp", 1) > 1)

    def _get_mesh(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names and the sizes of the axes of the mesh."""
        names = tuple(self.active_mesh_dims)
        return names, tuple(self._sizes[name] for name in names)

    def build_device_mesh(self, device_type: str) -> DeviceMesh | None:
        """Return a new mesh, with its flattened views `dp`, `dp_shard_cp` and `dp_cp`; None when no axis has ranks.

        Args:
            device_type: "cuda", "cpu", ...
        """
        from torch.distributed.device_mesh import init_device_mesh

        names, shape = self._get_mesh()
        if not names:
            return None
        mesh = init_device_mesh(device_type, shape, mesh_dim_names=names)
        for axes, view in VIEWS.values():
            named = self._named(axes)
            if named:
                mesh[tuple(named)]._flatten(view)
        return mesh

    def view(self, purpose: str) -> DeviceMesh | None:
        """Return the ranks that this one shares something with, as a mesh of one dimension; None when it is alone.

        Args:
            purpose: "data": they see different batches; "shard": parameters are sharded over them; "loss": losses and
                gradients are averaged over them; or the name of an axis.

        Raises:
            ValueError: there is no such purpose, or the mesh is not built yet.
        """
        if purpose not in (*VIEWS, *AXES):
            raise ValueError(
                message(
                    given=f"view({purpose!r})",
                    why="no group of ranks has this purpose",
                    allowed=", ".join((*VIEWS, *AXES)),
                    do=did_you_mean(purpose, (*VIEWS, *AXES)),
                )
            )
        axes = self._named(VIEWS[purpose][0] if purpose in VIEWS else (purpose,))
        mesh = self.get_device_mesh() if axes else None
        if mesh is None:
            return None
        return mesh[axes[0]] if len(axes) == 1 else mesh[tuple(axes)]._flatten(VIEWS[purpose][1])

    def get_device_mesh(self, device_type: str | None = None) -> DeviceMesh | None:
        """Return the mesh, built when it is first asked for.

        Raises:
            ValueError: it is not built, and `device_type` is not given, or another one than it was built for.
        """
        mesh: DeviceMesh | None = self.device_mesh
        if mesh is None and device_type is not None:
            mesh = self.build_device_mesh(device_type)
            self.__dict__["device_mesh"] = mesh
        built = None if mesh is None else mesh.device_type
        if self.active_mesh_dims and (built is None or device_type not in (None, built)):
            raise ValueError(
                message(
                    given=f"get_device_mesh({device_type!r})",
                    why="the mesh is not built yet" if built is None else f"the mesh is one of {built} devices",
                    allowed="the type of device that the run computes on, such as 'cuda' or 'cpu'",
                    do="pass accelerator.device.type, or read accelerator.torch_device_mesh",
                )
            )
        return mesh

    def _set_size(self, parallelism: str, size: int) -> None:
        """Change the size of an axis, before the mesh is built."""
        if parallelism not in self._sizes:
            raise ValueError(
                message(
                    given=f"an axis called {parallelism!r}",
                    why="the mesh has no such axis",
                    allowed=", ".join(self._sizes),
                    do="name one of these",
                )
            )
        self._sizes[parallelism] = size
        setattr(self, f"{parallelism}_size", size)

    def _validate_accelerator(self, accelerator: Any) -> None:
        """Fit the sizes to the processes of `accelerator`; called before the mesh is built.

        Raises:
            ValueError: their product is another number than there are processes.
        """
        processes = accelerator.num_processes
        for axis in AXES:
            if axis in self._sizes:
                self._sizes[axis] = getattr(self, f"{axis}_size")  # scripts assign attributes
        if self.total_size == 1 and processes > 1:
            sharded = getattr(accelerator.state, "fsdp_plugin", None) is not None
            self._set_size("dp_shard" if sharded else "dp_replicate", processes)
        if self.total_size != processes:
            raise ValueError(
                message(
                    given=f"{self._product()} = {self.total_size} for {processes} process{'es' * (processes > 1)}",
                    why="every process has one place in the mesh",
                    allowed=" or ".join(nearest_sizes(self._sizes, processes)),
                    do="change a size, or start as many processes as the product says "
                    f"(--num_processes {self.total_size})",
                )
            )

    def _product(self) -> str:
        return " x ".join(f"{axis}_size={self._sizes[axis]}" for axis in self.active_mesh_dims) or "sizes of 1"
