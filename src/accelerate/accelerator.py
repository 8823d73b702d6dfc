"""`Accelerator`: what a training script talks to.

It is built once, chooses device, precision and strategy then, and delegates: each method below is a sentence about
which room does the work. There is no branch on strategy, device or precision in this file.
"""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accelerate.comm import operations
from accelerate.config.arguments import (
    UNSET,
    choose_accumulation,
    choose_dynamo,
    choose_fsdp,
    choose_parallelism,
    modern_autocast,
    modern_spellings,
    refuse_missing_capabilities,
    sort_handlers,
)
from accelerate.config.data_loader import DataLoaderConfiguration
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import DynamoBackend, PrecisionType
from accelerate.config.gradient_accumulation import GradientAccumulationPlugin
from accelerate.config.parallelism import ParallelismConfig
from accelerate.config.project import ProjectConfiguration
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from accelerate.data_loader.metrics import gather_for_metrics
from accelerate.devices.memory import clear_device_cache
from accelerate.logging import get_logger
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.precision.base import not_a_scalar
from accelerate.precision.select import select_precision
from accelerate.scheduler import AcceleratedScheduler, check_unit, describe_unit
from accelerate.state import AcceleratorState, GradientState
from accelerate.state.accelerator_state import undone_on_error
from accelerate.strategies.accumulation import Accumulate, Accumulation
from accelerate.strategies.base import Setup
from accelerate.strategies.bundle import Bundle, linked_optimizers, mark_prepared
from accelerate.strategies.control import ModelControl
from accelerate.strategies.ddp import sync_in_backward
from accelerate.strategies.fsdp2.public import fsdp2_prepare_model
from accelerate.strategies.mesh import model_has_dtensor as model_has_dtensor
from accelerate.strategies.select import select_strategy

if TYPE_CHECKING:
    from accelerate.checkpointing.training import Training
    from accelerate.config.autocast import AutocastKwargs
    from accelerate.config.ddp import DistributedDataParallelKwargs
    from accelerate.config.process_group import InitProcessGroupKwargs
    from accelerate.config.profile import ProfileKwargs
    from accelerate.config.scaler import GradScalerKwargs

logger = get_logger(__name__)


def fact(path: str, doc: str) -> Any:
    """Return a property that reads a fact where it is kept, at every access."""
    return property(attrgetter(path), doc=doc)


class Accelerator(ModelControl):
    """Runs a person's own PyTorch loop on whatever the process was started on.

    Args:
        device_placement: move models and batches to the device.
        mixed_precision: "no", "fp16" or "bf16"; by default ACCELERATE_MIXED_PRECISION, else "no".
        gradient_accumulation_steps: micro-batches per update; ACCELERATE_GRADIENT_ACCUMULATION_STEPS by default, or 1.
        cpu: use the CPU although there is an accelerator; with several processes they talk through gloo.
        dataloader_config: how data loaders are shared out.
        rng_types: the random generators that are made equal on all processes when a loader begins; by default
            ["generator"], the loader's own.
        project_dir, project_config: where files of the run go.
        gradient_accumulation_plugin: the number of steps and how windows end; excludes `gradient_accumulation_steps`.
        step_scheduler_with_optimizer: prepared schedulers move only when their optimizer does.
        kwargs_handlers: one object of each handler class, see `accelerate.utils`.
        fsdp_plugin: shard parameters, gradients and optimizer states; ACCELERATE_USE_FSDP makes one of FSDP_*.
        parallelism_config: the sizes of the axes that processes are laid out on.
        dynamo_backend, dynamo_plugin: compile prepared models with `torch.compile`.
        scheduler_unit: "process" moves a prepared scheduler by one step per process and call (the rule of 1.15, for
            schedules counted in batches of one process); "update" by one step per call.
        keep_output_dtype: leave model outputs in the compute dtype instead of converting them to fp32.

    Raises:
        ValueError: contradictory or unknown settings.
    """

    autocast_handler: AutocastKwargs | None
    ddp_handler: DistributedDataParallelKwargs | None
    scaler_handler: GradScalerKwargs | None
    init_handler: InitProcessGroupKwargs | None
    profile_handler: ProfileKwargs | None

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: Any = UNSET,
        mixed_precision: PrecisionType | str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        rng_types: list[Any] | None = None,
        log_with: Any = None,
        project_dir: str | Path | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: list[Any] | None = None,
        dynamo_backend: DynamoBackend | str | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugins: Any = None,
        parallelism_config: ParallelismConfig | None = None,
        *,
        scheduler_unit: str = "process",
        keep_output_dtype: bool = False,
        **old_spellings: Any,
    ) -> None:
        refuse_missing_capabilities(
            deepspeed_plugin=deepspeed_plugin,
            megatron_lm_plugin=megatron_lm_plugin,
            deepspeed_plugins=deepspeed_plugins,
            log_with=log_with,
        )
        modern = modern_spellings(
            old_spellings | ({} if split_batches is UNSET else {"split_batches": split_batches}),
            known=lambda: inspect.signature(Accelerator).parameters,
            mixed_precision=mixed_precision,
            dataloader_config=dataloader_config,
        )
        self.scheduler_unit = check_unit(scheduler_unit)
        self.device_placement = device_placement
        self.dataloader_config = modern["dataloader_config"] or DataLoaderConfiguration()
        self.project_configuration = project_config or ProjectConfiguration(project_dir=project_dir)
        if project_dir is not None and self.project_dir is None:
            self.project_configuration.set_directories(project_dir)
        self.__dict__.update(sort_handlers(kwargs_handlers or []))
        accumulation = choose_accumulation(gradient_accumulation_steps, gradient_accumulation_plugin)
        dynamo = choose_dynamo(dynamo_backend, dynamo_plugin)
        with undone_on_error():
            self.state = AcceleratorState(
                mixed_precision=modern["mixed_precision"],
                cpu=cpu,
                dynamo_plugin=dynamo,
                fsdp_plugin=choose_fsdp(fsdp_plugin),
                torch_tp_plugin=torch_tp_plugin,
                parallelism_config=choose_parallelism(parallelism_config, torch_tp_plugin),
                _from_accelerator=True,
                **(self.init_handler.to_kwargs() if self.init_handler is not None else {}),
            )
            self.gradient_state = GradientState(accumulation)
            self._compose(self.state.dynamo_plugin or dynamo, keep_output_dtype)
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.rng_types = rng_types if rng_types is not None else ["generator"]
        self.log_with: list[Any] = []
        self.trackers: list[Any] = []
        self.flag_tensor: torch.Tensor | None = None
        self.has_lomo_optimizer = False
        self._custom_objects: list[Any] = []
        self._init_checkpoints()

    def _compose(self, dynamo: TorchDynamoPlugin, keep_output_dtype: bool) -> None:
        """Choose precision and strategy for this run, once."""
        self.runtime = self.state.runtime()
        self._precision = select_precision(
            self.state.mixed_precision,
            self.runtime.device,
            scaler_handler=self.scaler_handler,
            autocast_handler=self.autocast_handler,
            keep_output_dtype=keep_output_dtype,
        )
        setup = Setup(
            self.runtime,
            self._precision,
            dynamo,
            self.ddp_handler,
            getattr(self.state, "fsdp_plugin", None),
            *self._lay_out(),
        )
        self._strategy = select_strategy(setup)
        self._readers = self._those_that_read()
        self.state.set_distributed_type(self._strategy.label())
        self.native_amp = self._precision.spec.compute is not None
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[AcceleratedOptimizer] = []
        self._schedulers: list[AcceleratedScheduler] = []
        self._dataloaders: list[Any] = []
        self._accumulation = Accumulation(
            self.gradient_state, self.runtime.collectives, self._strategy.no_sync_in_window, self._models
        )

    # --- facts --------------------------------------------------------------------------------------------------------

    _collectives = fact("runtime.collectives", "How the processes talk to each other.")
    distributed_type = fact("state.distributed_type", "What kind of run this is, for other people's code to read.")
    num_processes = fact("state.num_processes", "How many processes train together.")
    process_index = fact("state.process_index", "The rank of this process among all.")
    local_process_index = fact("state.local_process_index", "The rank of this process on its machine.")
    device = fact("state.device", "The device of this process.")
    mixed_precision = fact("state.mixed_precision", 'The precision of forward passes: "no", "fp16", "bf16".')
    is_fsdp2 = fact("state.is_fsdp2", "Whether the run is FSDP of the second generation.")
    split_batches = fact("dataloader_config.split_batches", "Whether batches are split over the processes.")
    dispatch_batches = fact("dataloader_config.dispatch_batches", "Whether the main process reads for all.")
    use_seedable_sampler = fact("dataloader_config.use_seedable_sampler", "Whether shuffling follows a seed.")
    non_blocking = fact("dataloader_config.non_blocking", "Whether copies to the device overlap with computation.")
    use_stateful_dataloader = fact("dataloader_config.use_stateful_dataloader", "Whether loaders keep their position.")
    project_dir = fact("project_configuration.project_dir", "Where files of the run go.")
    logging_dir = fact("project_configuration.logging_dir", "Where trackers write.")
    save_iteration = fact("project_configuration.iteration", "The number of the next automatic checkpoint.")
    should_save_model = fact("is_local_main_process", "Whether this process writes models.")

    @property
    def use_fp16(self) -> bool:
        """The old spelling of `mixed_precision == "fp16"`."""
        warnings.warn("use_fp16 is an old spelling; write mixed_precision == 'fp16'.", FutureWarning, stacklevel=2)
        return self.mixed_precision == "fp16"

    @property
    def multi_device(self) -> bool:
        """Whether several accelerators train replicas; False on CPU, as in 1.15."""
        return self.use_distributed and self.distributed_type.name.startswith("MULTI_") and self.device.type != "cpu"

    @property
    def even_batches(self) -> bool:
        """Whether the first samples are repeated at the end so that every process gets equally many."""
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.dataloader_config.even_batches = value

    @property
    def scaler(self) -> Any:
        """The gradient scaler of fp16 training, None otherwise."""
        return self._precision.scaler

    @scaler.setter
    def scaler(self, scaler: Any) -> None:
        self._precision.scaler = scaler

    # --- prepare ------------------------------------------------------------------------------------------------------

    def prepare(self, *args: Any, device_placement: list[bool | None] | None = None) -> Any:
        """Make models, optimizers, schedulers and data loaders ready for this run; anything else passes through.

        Returns:
            The prepared objects in the order they were passed, or the one object alone.

        Raises:
            ValueError: `device_placement` of another length; an object this strategy can't prepare; a scheduler whose
                optimizer is not prepared.
        """
        if self._strategy.divides_batches:
            args = self._prepare_cp(*args)
        bundle = Bundle.of(args, device_placement)
        self._strategy.check(bundle)
        self._strategy.prepare(bundle, self)
        return bundle.results()

    def _prepare_fsdp2(self, *args: Any) -> tuple[Any, ...]:
        """Prepare models with their optimizers, by the `fsdp2_prepare_model` of this module, which may be replaced."""
        bundle = Bundle.of(args)
        self._strategy.prepare_together(bundle, self, lambda model: fsdp2_prepare_model(self, model))
        return tuple(slot.value for slot in bundle.slots)

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module:
        """Move `model` to the device, put it in the chosen precision, wrap it for training and compile it.

        Args:
            evaluation_mode: don't wrap it for training.
        """
        if model not in self._models:
            self._models.append(model)
        if not getattr(model, "_is_accelerate_prepared", False):
            place = self.device_placement if device_placement is None else device_placement
            model = self._strategy.prepare_model(
                model, place=place, autocast=self.native_amp, evaluation_mode=evaluation_mode
            )
            mark_prepared(model)
        return model

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Wrap `optimizer` so that it steps only when gradients are complete, through the scaler where there is one."""
        if isinstance(optimizer, AcceleratedOptimizer):
            prepared = optimizer
        else:
            prepared = AcceleratedOptimizer(
                optimizer,
                device_placement=self.device_placement if device_placement is None else device_placement,
                precision=self._precision,
                before_step=self._accumulation.settle,
            )
            mark_prepared(prepared)
        if prepared not in self._optimizers:
            self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        """Wrap `scheduler` so that it moves when its optimizer does.

        Raises:
            ValueError: its optimizer has not been prepared.
        """
        if getattr(scheduler, "_is_accelerate_prepared", False):
            prepared = scheduler
        else:
            prepared = AcceleratedScheduler(
                scheduler,
                linked_optimizers(scheduler, self._optimizers) if self.step_scheduler_with_optimizer else [],
                step_with_optimizer=self.step_scheduler_with_optimizer,
                split_batches=self.split_batches,
                num_processes=self._count_batches(),
                unit=self.scheduler_unit,
            )
            mark_prepared(prepared)
            if prepared.steps_per_call > 1:
                logger.warning_once(describe_unit(prepared))
        if prepared not in self._schedulers:
            self._schedulers.append(prepared)
        return prepared

    def prepare_data_loader(
        self,
        data_loader: Any,
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Callable[..., Any] | None = None,
    ) -> Any:
        """Return a loader that gives this process its share of `data_loader`, on the device.

        Args:
            slice_fn_for_dispatch: cuts the batches that the main process reads for all, see `DataLoaderConfiguration`.
        """
        if not getattr(data_loader, "_is_accelerate_prepared", False):
            config = self.dataloader_config
            data_loader = prepare_data_loader(
                data_loader,
                self.device,
                num_processes=self.num_processes,
                process_index=self.process_index,
                split_batches=config.split_batches,
                put_on_device=self.device_placement if device_placement is None else device_placement,
                rng_types=self.rng_types.copy(),
                dispatch_batches=config.dispatch_batches,
                even_batches=config.even_batches,
                slice_fn_for_dispatch=slice_fn_for_dispatch,
                use_seedable_sampler=config.use_seedable_sampler,
                data_seed=config.data_seed,
                non_blocking=config.non_blocking,
                use_stateful_dataloader=config.use_stateful_dataloader,
                torch_device_mesh=self.torch_device_mesh,
                runtime=self.runtime,
            )
            mark_prepared(data_loader)
        if data_loader not in self._dataloaders:
            self._dataloaders.append(data_loader)
        return data_loader

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return a loader over what `dataloader` yields after its first `num_batches` batches."""
        return skip_first_batches(dataloader, num_batches=num_batches)

    # --- the training step --------------------------------------------------------------------------------------------

    @property
    def sync_gradients(self) -> bool:
        """Whether this micro-batch completes an update."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, sync_gradients: bool) -> None:
        self.gradient_state.sync_gradients = sync_gradients

    @property
    def gradient_accumulation_steps(self) -> int:
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        self.gradient_state.plugin_kwargs["num_steps"] = steps

    @property
    def step(self) -> int:
        """Micro-batches since the data loader began, of the models that `accumulate` was last called with."""
        return self._accumulation.step

    @step.setter
    def step(self, step: int) -> None:
        self._accumulation.step = step

    def accumulate(self, *models: torch.nn.Module, num_items: torch.Tensor | int | None = None) -> Accumulate:
        """Return the context of one micro-batch of `models`.

        Args:
            models: the models trained in it. Each set of models counts its own micro-batches.
            num_items: how many items (label tokens, say) the mean loss of this micro-batch was taken over. When given,
                the gradients of an update are those of the mean over all items of its window on all processes, as if it
                were one big batch, instead of the mean of the micro-batches' means.
        """
        return Accumulate(self._accumulation, models, num_items)

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context whose backward passes don't communicate gradients (FSDP2: `set_requires_gradient_sync`)."""
        return self._strategy.no_sync(model)

    @staticmethod
    def trigger_sync_in_backward(model: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which the next backward pass communicates although its forward ran under `no_sync`."""
        return sync_in_backward(model)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Compute gradients of `loss`, divided by the number of accumulation steps.

        Args:
            loss: a scalar, or a tensor of any shape together with `gradient=`.
            kwargs: handed on to `torch.Tensor.backward`.

        Raises:
            RuntimeError: `loss` is not a scalar.
        """
        self.gradient_state.trained = self.gradient_state.turn
        try:
            self._strategy.backward(self._accumulation.scaled(loss), **kwargs)
        except RuntimeError as error:
            if loss.numel() != 1 and "gradient" not in kwargs:
                raise RuntimeError(not_a_scalar(loss)) from error
            raise

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Divide gradients by the loss scale of fp16 training, so that they can be looked at or clipped.

        Args:
            optimizer: one optimizer or a list of them; all prepared ones by default.
        """
        chosen = self._optimizers if optimizer is None else optimizer
        self._precision.unscale(chosen if isinstance(chosen, list | tuple) else [chosen])

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2
    ) -> torch.Tensor | None:
        """Clip the gradients of `parameters` to a total norm of `max_norm`; returns the norm before (0-d tensor)."""
        parameters = self._ready_to_clip(parameters)
        return self._strategy.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value_(self, parameters: Iterable[torch.Tensor], clip_value: float) -> None:
        """Clip each element of the gradients of `parameters` to [-clip_value, clip_value]."""
        parameters = self._ready_to_clip(parameters)
        self._strategy.clip_grad_value_(parameters, clip_value)

    def _ready_to_clip(self, parameters: Iterable[torch.Tensor] | torch.Tensor) -> list[torch.Tensor]:
        """Return `parameters` as a list, with gradients as the optimizers that hold them will see them."""
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        self._accumulation.settle()
        if self._precision.scaler is not None:
            wanted = set(map(id, listed))
            self.unscale_gradients(
                [
                    optimizer
                    for optimizer in self._optimizers
                    if any(id(each) in wanted for group in optimizer.param_groups for each in group["params"])
                ]
            )
        return listed

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether a prepared optimizer left out its last update because of overflowing fp16 gradients."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers)

    def autocast(
        self, autocast_handler: AutocastKwargs | None = None, **old_spellings: Any
    ) -> AbstractContextManager[Any]:
        """Return the context that runs operations in the chosen precision.

        Args:
            autocast_handler: settings for this context; those of the Accelerator by default.
        """
        handler = modern_autocast(old_spellings, autocast_handler or self.autocast_handler)
        return self._precision.forward_context(handler) if self.native_amp else nullcontext()

    @contextmanager
    def profile(self, profile_handler: ProfileKwargs | None = None) -> Iterator[Any]:
        """Profile the body with `torch.profiler`; writes `profile_<rank>.json` to its `output_trace_dir`."""
        from accelerate.config.profile import ProfileKwargs

        handler = profile_handler or self.profile_handler or ProfileKwargs()
        with handler.build() as profiler:
            yield profiler
        if handler.output_trace_dir is not None:
            handler.export(profiler, self.process_index)
            self.wait_for_everyone()

    # --- between processes --------------------------------------------------------------------------------------------

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all processes, concatenated along dimension 0; nested data is gathered leaf by leaf.

        Raises:
            TypeError: a leaf is not a tensor.
        """
        return operations.gather(self.runtime.collectives, tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather `input_data` without the samples that were repeated to even out the last batch of the active loader.

        Args:
            use_gather_object: gather as pickled objects even what consists of tensors only.
        """
        return gather_for_metrics(self._readers, self.gradient_state, input_data, use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the sum, mean, max or min of the tensors of all processes."""
        return operations.reduce(self.runtime.collectives, tensor, reduction, scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return `tensor` padded along `dim` to the greatest size that it has on any process."""
        return operations.pad_across_processes(self.runtime.collectives, tensor, dim, pad_index, pad_first)

    def set_trigger(self) -> None:
        """Raise a flag on this process, for `check_trigger` to see on all of them."""
        self.flag_tensor = torch.ones(1, dtype=torch.int32, device=self.device)

    def check_trigger(self) -> bool:
        """Return whether any process has raised its flag since the last check, and lower it."""
        flag = torch.zeros(1, dtype=torch.int32, device=self.device) if self.flag_tensor is None else self.flag_tensor
        self.flag_tensor = None
        return bool(self.runtime.collectives.all_reduce(flag, "sum").item() > 0)

    # --- models and files ---------------------------------------------------------------------------------------------

    def _training(self) -> Training:
        """Return what there is to save and to restore."""
        from accelerate.checkpointing.training import Training  # only who saves pays for it

        return Training(
            runtime=self.runtime,
            strategy=self._strategy,
            models=self._models,
            optimizers=self._optimizers,
            schedulers=self._schedulers,
            data_loaders=self._dataloaders,
            custom=self._custom_objects,
            scaler=self.scaler,
            windows=self._accumulation,
            mixed_precision=self.mixed_precision,
        )

    def free_memory(self, *objects: Any) -> list[None]:
        """Forget everything prepared and empty the device's cache.

        Returns:
            One None for each of `objects`, for `model, optimizer = accelerator.free_memory(model, optimizer)`.
        """
        self._background.close()
        for prepared in (self._models, self._optimizers, self._schedulers, self._dataloaders):
            prepared.clear()
        self._accumulation.forget()
        self._strategy.close()
        count = len(objects)
        del objects
        gc.collect()
        clear_device_cache()
        return [None] * count

    def clear(self, *objects: Any) -> list[None]:
        """The same as `free_memory`."""
        return self.free_memory(*objects)

    def end_training(self) -> None:
        """Finish: wait for what is still being saved, and leave the process group. Call it at the end of the script."""
        self._close_checkpoints()
        self.state.destroy_process_group()

    def __deepcopy__(self, memo: dict[int, Any]) -> Accelerator:
        return self
