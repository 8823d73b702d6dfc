"""The strategy interface: how models are wrapped, gradients communicated and states handed out.

`Strategy` is abstract with total defaults, which are those of one process; the concrete classes are final. The
`Accelerator` composes one of them and never asks which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from accelerate.base.messages import message
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import DistributedType
from accelerate.precision.base import Precision
from accelerate.state.runtime import Runtime
from accelerate.strategies.axes.base import Axis
from accelerate.strategies.axes.select import axes_of, chained
from accelerate.strategies.bundle import Bundle
from accelerate.strategies.compile import compile_model
from accelerate.strategies.relink import relinked
from accelerate.strategies.unwrap import extract_model_from_parallel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accelerate.checkpointing.records import Record
    from accelerate.config.ddp import DistributedDataParallelKwargs
    from accelerate.config.parallelism import ParallelismConfig


class One(Protocol):
    """Prepares one object at a time; the `Accelerator` implements it, so that overriding its methods takes effect."""

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module: ...

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> torch.optim.Optimizer: ...

    def prepare_scheduler(self, scheduler: Any) -> Any: ...

    def prepare_data_loader(self, data_loader: Any, device_placement: bool | None = None) -> Any: ...

    def _prepare_fsdp2(self, *args: Any) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Setup:
    """What a strategy is chosen by and built from.

    Args:
        runtime: who this process is, where it computes, how it talks to the others.
        precision: the precision of forward and backward passes.
        dynamo: what `torch.compile` is asked to do.
        ddp_handler: keyword arguments of `DistributedDataParallel` and its communication hooks.
        fsdp_plugin: how parameters are sharded; None where they are not.
        parallelism: the sizes of the axes that processes are laid out on; None: all see other data.
        mesh: these axes; None where none has more than one process.
    """

    runtime: Runtime
    precision: Precision
    dynamo: TorchDynamoPlugin
    ddp_handler: DistributedDataParallelKwargs | None = None
    fsdp_plugin: Any = None
    parallelism: ParallelismConfig | None = None
    mesh: DeviceMesh | None = None


class Strategy(ABC):
    """One way to train; complete once it is built from its `Setup`."""

    name: ClassVar[str]
    #: Models can train on a different number of batches per rank (`torch.distributed.algorithms.Join`).
    joinable: ClassVar[bool] = False
    #: Every rank has the whole state of every optimizer, so that any of them can write it.
    replicates: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.runtime = setup.runtime
        self.precision = setup.precision
        self.axes = axes_of(setup)
        self.divides_batches = any(type(axis).batch is not Axis.batch for axis in self.axes)
        self._compute_gradients = chained(self.axes, self.precision.backward)

    @abstractmethod
    def label(self) -> DistributedType:
        """Return the `DistributedType` that the state shows to other people's code."""

    def check(self, bundle: Bundle) -> None:
        """Refuse what this strategy can't prepare, before anything is changed."""
        for axis in self.axes:
            axis.check(bundle)

    def prepare(self, bundle: Bundle, one: One) -> None:
        """Prepare everything in `bundle` in place: loaders, models and optimizers first, schedulers last."""
        self.prepare_data_loaders(bundle, one)
        with relinked(bundle.models, bundle.optimizers):
            for slot in bundle.of_kind("model"):
                slot.value = one.prepare_model(slot.value, device_placement=slot.device_placement)
        for slot in bundle.of_kind("optimizer"):
            slot.value = one.prepare_optimizer(slot.value, device_placement=slot.device_placement)
        for slot in bundle.of_kind("scheduler"):
            slot.value = one.prepare_scheduler(slot.value)

    def prepare_data_loaders(self, bundle: Bundle, one: One) -> None:
        """Prepare the loaders of `bundle` in place; for the axes too, if there is a model that they are for."""
        for slot in bundle.of_kind("data_loader"):
            slot.value = one.prepare_data_loader(slot.value, device_placement=slot.device_placement)
            if bundle.models:
                slot.value = self.divide_batches(slot.value)

    def divide_batches(self, data_loader: Any) -> Any:
        """Return the loader that gives this rank its part of each batch of a prepared one, along all axes."""
        for axis in self.axes:
            data_loader = axis.prepare_data_loader(data_loader)
        return data_loader

    def prepare_together(self, bundle: Bundle, one: One, shard: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
        """Prepare `bundle` with another function that shards models, for strategies that do."""
        self.prepare(bundle, one)

    def prepare_model(
        self, model: torch.nn.Module, *, place: bool, autocast: bool, evaluation_mode: bool
    ) -> torch.nn.Module:
        """Return `model` on the device, in the chosen precision, wrapped for training unless `evaluation_mode`."""
        model = self.divide(model)
        if place and not is_spread(model):
            model = self.placed(model)
        model = self.precision.prepare_model(model, self.runtime.device, autocast=autocast)
        if not evaluation_mode:
            model = self.wrap(model)
        return compile_model(model, self.setup.dynamo)

    def divide(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the part of a bare model that this rank computes, along all axes."""
        for axis in self.axes:
            model = axis.prepare_model(model)
        return model

    def placed(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return `model` on the device."""
        return model.to(self.runtime.device.storage)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model that communicates while it trains."""
        return model

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Compute the gradients of `loss`."""
        self._compute_gradients(loss, **kwargs)

    @contextmanager
    def batch(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: Iterable[torch.Tensor]
    ) -> Iterator[None]:
        """Divide the batch in `buffers` along the axes that do, in the body; see `Axis.batch`."""
        kept = list(kept)
        with ExitStack() as stack:
            for axis in self.axes:
                stack.enter_context(axis.batch(buffers, dims, kept))
            yield

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which backward passes of `model` do not communicate gradients."""
        return nullcontext()

    def no_sync_in_window(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch after which no update is due: :meth:`no_sync`, unless that costs more."""
        return self.no_sync(model)

    def sync_in_backward(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which the next backward pass communicates although its forward was under `no_sync`."""
        return nullcontext()

    def join(self, models: Sequence[Any], enable: bool) -> AbstractContextManager[Any]:
        """Return a context in which ranks that run out of batches first keep the others company."""
        return nullcontext()

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Clip the gradients of `parameters` to a total norm and return the norm before (0-d tensor)."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value_(self, parameters: Iterable[torch.Tensor], clip_value: float) -> None:
        """Clip each element of the gradients of `parameters` to [-clip_value, clip_value]."""
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def state_dict(self, model: torch.nn.Module, *, unwrap: bool = True) -> dict[str, Any]:
        """Return the full state of `model`, under the names of the bare model."""
        return (extract_model_from_parallel(model, keep_torch_compile=False) if unwrap else model).state_dict()

    def weights(self, model: torch.nn.Module) -> dict[str, Any]:
        """Return the state of `model` as a checkpoint takes it: whole, or where that would be costly by shard."""
        return self.state_dict(model)

    def offloaded(self, model: torch.nn.Module) -> dict[str, Callable[[], torch.Tensor]]:
        """Return what brings in each weight of a model that is offloaded, by its name in the bare model."""
        bare = extract_model_from_parallel(model, keep_torch_compile=False)
        if not any(hasattr(module, "_hf_hook") for module in bare.modules()):
            return {}
        from accelerate.big_modeling.state_dicts import offloaded_weights  # only who offloads pays for it

        return dict(offloaded_weights(bare))

    def load_state_dict(self, model: torch.nn.Module, state: Mapping[str, Any], **kwargs: Any) -> Any:
        """Load what :meth:`state_dict` returned; `kwargs` are those of `torch.nn.Module.load_state_dict`."""
        return extract_model_from_parallel(model, keep_torch_compile=False).load_state_dict(state, **kwargs)

    def model_records(self, models: Sequence[Any], weights: Sequence[Any], *, safe: bool) -> list[Record]:
        """Return how `models`, whose states are `weights`, are laid out in a checkpoint."""
        from accelerate.checkpointing.model_records import model_records  # only who saves pays for it

        return model_records(weights, [partial(self.load_state_dict, model) for model in models], safe, models)

    def optimizer_records(self, optimizers: Sequence[Any], models: Sequence[Any]) -> list[Record]:
        """Return how the states of `optimizers` are laid out in a checkpoint; `models` name their parameters."""
        from accelerate.checkpointing.records import optimizer_records

        return optimizer_records(optimizers, models)

    def close(self) -> None:  # noqa: B027  (most strategies hold nothing)
        """Release what the strategy holds."""


def is_spread(model: torch.nn.Module) -> bool:
    """Whether `model` was dispatched over several devices (its `hf_device_map` has more than one entry)."""
    return any(len(getattr(module, "hf_device_map", ())) > 1 for module in model.modules())


def refuse_spread_models(bundle: Bundle) -> None:
    """Refuse models that are spread over several devices, where each process needs a model of its own.

    Raises:
        ValueError: a model of `bundle` has an `hf_device_map` with more than one entry.
    """
    for model in bundle.models:
        if is_spread(model):
            raise ValueError(
                message(
                    given=f"a {type(model).__name__} that is spread over several devices (hf_device_map)",
                    why="every process of this run holds a whole model on its own device",
                    allowed="models on one device, loaded without device_map or with device_map={'': device}",
                    do="load the model without device_map='auto', start one process, "
                    "or set ACCELERATE_BYPASS_DEVICE_MAP=true if you know that each process has devices of its own",
                )
            )
