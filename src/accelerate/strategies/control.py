"""What a script asks of prepared models: the methods about models that `Accelerator` inherits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from accelerate.base.messages import message, warn_once
from accelerate.checkpointing.control import CheckpointControl
from accelerate.comm.collectives import Alone, Collectives
from accelerate.strategies.base import is_spread
from accelerate.strategies.join import joined
from accelerate.strategies.mesh import collectives_over
from accelerate.strategies.unwrap import extract_model_from_parallel

if TYPE_CHECKING:
    import torch

    from accelerate.config.parallelism import ParallelismConfig
    from accelerate.state import AcceleratorState
    from accelerate.strategies.base import Strategy


class ModelControl(CheckpointControl):
    """Questions about models, for the class that holds what is prepared."""

    _cp_context: Callable[..., AbstractContextManager[None]] | None = None

    if TYPE_CHECKING:  # what a class that inherits from this one has to bring
        _strategy: Strategy
        _dataloaders: list[Any]

        even_batches: bool
        state: AcceleratorState
        _readers: Collectives

        def prepare_data_loader(self, data_loader: Any) -> Any: ...

    def _lay_out(self) -> tuple[ParallelismConfig | None, Any]:
        """Return the sizes of the axes and their mesh, built for the processes of this run when it is first asked for.

        Raises:
            ValueError: the product of the sizes isn't the number of processes.
        """
        layout = self.state.parallelism_config
        if layout is not None and self.state.device_mesh is None:
            layout._validate_accelerator(self)
            self.state.device_mesh = layout.get_device_mesh(self.state.device.type)
        return layout, self.state.device_mesh

    def _those_that_read(self) -> Collectives:
        """Return how this rank talks to those that read other data: one for each share of it."""
        layout = self.state.parallelism_config
        if layout is None or self.state.device_mesh is None or not layout.non_dp_dim_names:
            return self._strategy.runtime.collectives
        # Those that divide sequences between them read other batches, and exchange parts.
        mesh = layout.view("loss" if layout.sp_enabled else "data")
        runtime = self._strategy.runtime
        return Alone(runtime.collectives.device) if mesh is None else collectives_over(mesh, runtime)

    def _count_batches(self) -> int:
        """Return how many batches all processes compute in one step; several may have parts of the same."""
        layout = self.state.parallelism_config
        return self._readers.world_size // (layout.sp_size if layout is not None and layout.sp_enabled else 1)

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """The sizes of the axes that processes are laid out on; None when all of them see other data."""
        return self.state.parallelism_config

    @property
    def torch_device_mesh(self) -> Any:
        """The mesh of these axes, a `torch.distributed.DeviceMesh`, or None."""
        return self.state.device_mesh

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """Whether models are sharded in a way that other axes can be combined with."""
        return self.state.is_fsdp2

    @property
    def data_parallel_rank(self) -> int:
        """Which replica this process belongs to."""
        return self._rank_along("dp_replicate")

    @property
    def data_parallel_shard_rank(self) -> int:
        """Which shard of its replica this process holds."""
        return self._rank_along("dp_shard")

    @property
    def tensor_parallel_rank(self) -> int:
        """Which part of each layer this process holds."""
        return self._rank_along("tp")

    @property
    def pipeline_parallel_rank(self) -> int:
        """Which part of the sequence of layers this process holds."""
        return self._rank_along("pp")

    @property
    def context_parallel_rank(self) -> int:
        """Which part of each sequence this process sees."""
        return self._rank_along("cp")

    def maybe_context_parallel(
        self,
        buffers: list[torch.Tensor] | None = None,
        buffer_seq_dims: list[int] | None = None,
        no_restore_buffers: set[torch.Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """Divide sequences among the ranks that share them, inside of the context; without such an axis, do nothing.

        Args:
            buffers: tensors that have a dim along the sequence; each rank sees its part of them in the context.
            buffer_seq_dims: that dim of each buffer.
            no_restore_buffers: those of `buffers` that need not be whole again after the context.
        """
        if not self._strategy.divides_batches:
            if buffers:
                warn_once("maybe_context_parallel has no effect: no axis divides sequences (cp_size is 1).")
            return nullcontext()
        return (self._cp_context or self._divided)(
            buffers=buffers, buffer_seq_dims=buffer_seq_dims, no_restore_buffers=no_restore_buffers
        )

    def deepspeed_ulysses_dl_adapter(self, dl: Any, model: torch.nn.Module) -> Any:
        """Return the loader that gives this process its part of the sequences of `dl`, along the axis `sp`.

        A loader that is prepared in the same call as a model is one already. Without this axis it is `dl` itself.

        Args:
            dl: a data loader, prepared or not.
            model: the prepared model that is trained on it.

        Raises:
            ValueError: the model isn't prepared.
        """
        if not any(axis.name == "sp" for axis in self._strategy.axes):
            warn_once("deepspeed_ulysses_dl_adapter has no effect: no axis divides sequences by turns (sp_size is 1).")
            return dl
        if not getattr(model, "_is_accelerate_prepared", False):
            raise ValueError(
                message(
                    given=f"deepspeed_ulysses_dl_adapter with a {type(model).__name__} that is not prepared",
                    why="its attention has to put the parts of sequences together before there are parts",
                    allowed="a model that `prepare` has returned",
                    do="call accelerator.prepare(model, optimizer) first",
                )
            )
        prepared = dl if getattr(dl, "_is_accelerate_prepared", False) else self.prepare_data_loader(dl)
        return self._strategy.divide_batches(prepared)

    def _prepare_cp(self, *args: Any) -> tuple[Any, ...]:
        """Choose what `maybe_context_parallel` enters, when something is prepared; returns what it was given.

        Scripts replace it to set another `_cp_context`, which takes the arguments of `maybe_context_parallel`.
        """
        self._cp_context = self._divided
        return args

    def _divided(
        self,
        buffers: list[torch.Tensor] | None,
        buffer_seq_dims: list[int] | None,
        no_restore_buffers: set[torch.Tensor] | None,
    ) -> AbstractContextManager[None]:
        return self._strategy.batch(buffers or (), buffer_seq_dims or (), no_restore_buffers or ())

    def _rank_along(self, axis: str) -> int:
        layout = self.state.parallelism_config
        if layout is None:
            raise RuntimeError(
                message(
                    given=f"the rank of this process along {axis}",
                    why="processes are not laid out on axes",
                    allowed="an Accelerator with a parallelism_config",
                    do=f"pass parallelism_config=ParallelismConfig({axis}_size=...)",
                )
            )
        return int(self.state.device_mesh[axis].get_local_rank()) if axis in layout.active_mesh_dims else 0

    def unwrap_model(
        self, model: torch.nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> torch.nn.Module:
        """Return the model without what `prepare` put around it."""
        return extract_model_from_parallel(model, keep_fp32_wrapper, keep_torch_compile)

    def get_state_dict(self, model: torch.nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the full state dict of a prepared model."""
        return self._strategy.state_dict(model, unwrap=unwrap)

    def verify_device_map(self, model: torch.nn.Module) -> bool:
        """Return whether `model` is spread over several devices."""
        return is_spread(model)

    def join_uneven_inputs(
        self, joinables: list[Any], even_batches: bool | None = None
    ) -> AbstractContextManager[None]:
        """Train although ranks have different numbers of batches: those that end first answer the others' collectives.

        Args:
            joinables: prepared models (and `torch.distributed.algorithms.Joinable` optimizers).
            even_batches: overrides this setting of the prepared map-style loaders inside the context.
        """
        even = self.even_batches if even_batches is None else even_batches
        return joined(self._strategy, joinables, self._dataloaders, even)
