"""Pipeline parallel: the sequence of layers divided over the ranks of an axis, through which micro-batches flow.

A pipeline runs forward and backward passes of many micro-batches together, while a script makes two calls:
`loss = model(batch)` and `accelerator.backward(loss)`. So the first call runs the whole schedule and keeps the
gradients that it finds aside. The loss it returns stands for them: the backward pass of this loss hands each parameter
its gradient, times whatever the loss was scaled by. Accumulation, clipping and hooks of parameters see nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist

from accelerate.base.messages import message
from accelerate.big_modeling.batches import ExampleInputs, FlatModel
from accelerate.big_modeling.stages import check_split_points, even_stages, first_of_stages, split_at
from accelerate.strategies import norms
from accelerate.strategies.axes.base import Axis, Place
from accelerate.strategies.axes.loss import Release, WithLoss
from accelerate.strategies.axes.parts import Part, parts_of

if TYPE_CHECKING:
    from accelerate.strategies.bundle import Bundle


@final
class Pipeline(Axis):
    """Layers, one after the other, divided over ranks."""

    name = "pp"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.count = self.mesh.size() * place.settings.stages_per_process

    def check(self, bundle: Bundle) -> None:
        for model in bundle.models:
            if not isinstance(model, Pipelined):
                self.split_points(model)

    def split_points(self, model: torch.nn.Module) -> list[str]:
        """Return the names of the modules that stages but the first begin with.

        Raises:
            ValueError: the model has not so many parts, or no such modules.
        """
        given = self.place.settings.split_points
        if given == "auto":
            return first_of_stages(even_stages(model, self.count), model)
        names = [given] if isinstance(given, str) else list(given)
        check_split_points(model, names, self.count)
        return names

    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        for tensor in (*model.parameters(), *model.buffers()):
            self.place.runtime.collectives.broadcast(tensor.data, source=0)
        return Pipelined(model, self.split_points(model), self.place)

    def total_norm(self, norm: torch.Tensor, norm_type: float) -> torch.Tensor:
        return norms.norm_over(norm, norm_type, self.mesh.get_group())


@final
class Pipelined(torch.nn.Module):
    """A model of which this rank computes some stages; calling it trains on a batch, see the head of this file.

    It is cut when it is first called, after what it is called with. Then it lets go of the parameters of other ranks'
    stages.

    Args:
        module: the model.
        split_points: the names of the modules that stages but the first begin with.
        place: the axis.
    """

    def __init__(self, module: torch.nn.Module, split_points: Sequence[str], place: Place) -> None:
        super().__init__()
        self.module = module
        self.split_points, self.place = list(split_points), place
        self.group = place.mesh.get_group()
        self.device = place.runtime.device.torch_device
        #: Gradients are averaged over replicas at the next backward pass.
        self.is_synchronised = True
        #: Parameters that stages of several ranks use; on all but the first of these they are marked as borrowed.
        self.shared: list[torch.nn.Parameter] = []
        self.own: list[torch.nn.Parameter] = []
        self._inputs: ExampleInputs | None = None
        self._piece = 0
        self._parts: dict[bool, tuple[WithLoss, list[Part]]] = {}
        self._schedules: dict[tuple[bool, bool, int], Any] = {}
        #: What hands out gradients; in a list since it is no part of the model, whose parameters it holds.
        self._release: list[torch.nn.Module] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a batch through all stages and return its loss; its backward pass hands out the gradients.

        Raises:
            ValueError: the batch can't be cut into micro-batches, or differs from the first in more than its size.
        """
        inputs = self._inputs or self._learn(args, kwargs)
        if refusal := inputs.refusal(args, kwargs):
            raise ValueError(refusal)
        batch = inputs.batch_of(args, kwargs)
        least = 1 if self.place.settings.schedule == "gpipe" else len(self.split_points) + 1
        if batch % self._piece or batch < least * self._piece:
            raise ValueError(_rest(batch, self._piece, least))
        with_loss, parts = self._parts.get(self.training) or self._cut(args, kwargs)
        pieces = inputs.pieces(args, kwargs, batch, self._piece, self.device)
        named = {f"input_{number}": each for number, each in enumerate(pieces)}
        schedule = self._schedule(parts, batch // self._piece)
        return with_loss.answer(self._run(schedule, batch // self._piece, named))

    def _run(self, schedule: Any, count: int, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch; with gradients enabled, one that hands out gradients."""
        losses: list[torch.Tensor] = []
        rest = {"target": torch.zeros(count), "losses": losses, "return_outputs": False}
        if not torch.is_grad_enabled():
            schedule.eval(**inputs, **rest)
            return self._agreed(losses)
        with self._gradients() as gradients:
            schedule.step(**inputs, **rest)
        loss = self._agreed(losses)
        release: Any = self._release[0]
        silent = getattr(release, "no_sync", nullcontext)
        with nullcontext() if self.is_synchronised else silent():
            return release(loss, gradients)

    def _agreed(self, losses: list[torch.Tensor]) -> torch.Tensor:
        """Return the sum of the shares of the loss that the rank of the last stage has, on all ranks."""
        loss = torch.stack(losses).detach().float().sum() if losses else torch.zeros((), device=self.device)
        dist.broadcast(loss, group=self.group, group_src=self.place.mesh.size() - 1)
        return loss

    @contextmanager
    def _gradients(self) -> Iterator[list[torch.Tensor]]:
        """Collect the gradients that the body computes in the list that is yielded, and leave those that were there."""
        before = [parameter.grad for parameter in self.own]
        found: list[torch.Tensor] = []
        try:
            for parameter in self.own:
                parameter.grad = None
            yield found
            for parameter in self.shared:
                self._add_up(parameter)
            found += [torch.zeros_like(each) if each.grad is None else each.grad for each in self.own]
        finally:
            for parameter, gradient in zip(self.own, before, strict=True):
                parameter.grad = gradient

    def _add_up(self, parameter: torch.nn.Parameter) -> None:
        """Add up the gradients of a parameter that several ranks use."""
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros(parameter.shape, dtype=parameter.dtype, device=self.device)
        dist.all_reduce(gradient, group=self.group)
        if not is_elsewhere(parameter):
            parameter.grad = gradient

    def _learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExampleInputs:
        """Learn from the first batch what batches are like."""
        from torch.utils import _pytree as pytree

        sizes = [
            int(each.shape[0])
            for each in pytree.tree_leaves((args, kwargs))
            if isinstance(each, torch.Tensor) and each.dim()
        ]
        count = self.place.settings.num_microbatches or len(self.split_points) + 1
        if not sizes or sizes[0] % count:
            raise ValueError(_no_pieces(sizes[0] if sizes else 0, count))
        self._inputs, self._piece = ExampleInputs(args, kwargs, sizes[0]), sizes[0] // count
        return self._inputs

    def _cut(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[WithLoss, list[Part]]:
        """Trace the model as it is now, for training or evaluation, and return the parts of this rank."""
        from torch.distributed.pipelining._IR import _modify_graph_op_device

        assert self._inputs is not None
        cpu = torch.device("cpu")
        with_loss = WithLoss(self.module, self.place.settings.loss)
        with_loss.train(self.training)
        traced = FlatModel(with_loss, self._inputs)
        example = self._inputs.pieces(args, kwargs, self._piece, self._piece, cpu)
        with _materialised(self.module), torch.autocast(self.device.type, enabled=False):
            pipe = split_at(traced, [f"model.model.{name}" for name in self.split_points], example)
            parts = parts_of(pipe, traced)
        if len(parts) != len(self.split_points) + 1:
            raise ValueError(_not_cut(self.split_points, len(parts)))
        mine = parts[self.place.mesh.get_local_rank() :: self.place.mesh.size()]
        for part in mine:
            _modify_graph_op_device(part.body, self.device)  # type: ignore[arg-type]
        if not self._parts:
            self._settle(parts)
        self._parts[self.training] = with_loss, mine
        return self._parts[self.training]

    def _settle(self, parts: list[Part]) -> None:
        """Keep what the stages of this rank use, on its device, and let go of the rest."""
        rank, size = self.place.mesh.get_local_rank(), self.place.mesh.size()
        users: dict[torch.nn.Parameter, set[int]] = {}
        for part in parts:
            for parameter in part.parameters():
                users.setdefault(parameter, set()).add(part.number % size)
        for parameter in self.module.parameters():
            if rank not in users.get(parameter, ()):
                let_go(parameter)
            else:
                parameter.data = parameter.data.to(self.device)
        for buffer in self.module.buffers():
            buffer.data = buffer.data.to(self.device)
        trained = [each for each in users if each.requires_grad]
        self.own = [each for each in trained if rank in users[each]]
        self.shared = [each for each in trained if len(users[each]) > 1]
        for parameter in self.shared:
            parameter.is_borrowed = rank != min(users[parameter])  # type: ignore[attr-defined]
        self._release = [self._averaged(Release(self.own))]

    def _averaged(self, release: Release) -> torch.nn.Module:
        replicas = self.place.layout.view("loss")
        if replicas is None or not self.own:
            return release
        return torch.nn.parallel.DistributedDataParallel(release, process_group=replicas.get_group())

    def _schedule(self, parts: list[Part], count: int) -> Any:
        """Return what runs so many micro-batches through the stages."""
        from torch.distributed import pipelining

        key = self.training, torch.is_grad_enabled(), count
        if key not in self._schedules:
            stages = [
                _of_zeros(
                    pipelining.PipelineStage(
                        part, part.number, len(self.split_points) + 1, self.device, group=self.group
                    )
                )
                for part in parts
            ]
            kinds = {
                "gpipe": pipelining.ScheduleGPipe,
                "1f1b": pipelining.Schedule1F1B,
                "interleaved": pipelining.ScheduleInterleaved1F1B,
            }
            kind: Any = kinds[self.place.settings.schedule]
            self._schedules[key] = kind(
                stages if len(stages) > 1 else stages[0], count, loss_fn=partial(_share, count=count), scale_grads=False
            )
        return self._schedules[key]


def _of_zeros(stage: Any) -> Any:
    """Have a stage find out shapes from zeros, where torch takes what is in memory, which may be no valid token."""
    made_up = stage._to_tensor

    def to_tensor(value: Any) -> torch.Tensor:
        found = made_up(value)
        if not isinstance(value, torch.Tensor):
            found.data.zero_()
        return found

    stage._to_tensor = to_tensor
    return stage


def _share(output: torch.Tensor, target: torch.Tensor, *, count: int) -> torch.Tensor:
    """Return what the loss of one micro-batch adds to that of the batch."""
    return output / count


@contextmanager
def _materialised(model: torch.nn.Module) -> Iterator[None]:
    """Let all tensors of a model be in host memory in the body; what they hold there doesn't matter."""
    tensors = [*model.parameters(), *model.buffers()]
    before = [(each, each.data) for each in tensors if each.device.type != "cpu" or is_elsewhere(each)]
    try:
        for each, data in before:
            each.data = torch.empty(data.shape, dtype=data.dtype)
        yield
    finally:
        for each, data in before:
            each.data = data


def let_go(parameter: torch.nn.Parameter) -> None:
    """Let go of the values of a parameter of another rank, which keeps its shape: one zero, seen everywhere in it."""
    parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)
    parameter.grad = None
    parameter.is_elsewhere = True  # type: ignore[attr-defined]


def is_elsewhere(parameter: torch.Tensor) -> bool:
    """Whether another rank has the values of a parameter."""
    return getattr(parameter, "is_elsewhere", False)


def _no_pieces(batch: int, count: int) -> str:
    return message(
        given=f"a batch of {batch} samples for {count} micro-batches",
        why="micro-batches have one size, so that their mean loss is that of the batch",
        allowed=f"batches of {max(batch // count, 1) * count} or {(batch // count + 1) * count} samples",
        do="change the batch size, or num_microbatches of PipelineParallelConfig",
    )


def _rest(batch: int, piece: int, least: int) -> str:
    return message(
        given=f"a batch of {batch} samples for micro-batches of {piece}",
        why="stages are made for micro-batches of one size, that of the first batch",
        allowed=f"batches of a multiple of {piece} samples, of {least * piece} or more",
        do="pass drop_last=True to the data loader, or change the batch size or num_microbatches",
    )


def _not_cut(split_points: Sequence[str], parts: int) -> str:
    return message(
        given=f"split points {', '.join(split_points)}",
        why=f"the model comes in {parts} parts there: one of them runs first, several times, or not at all",
        allowed="modules that run once when the model is called, with something before them",
        do="name others in split_points of PipelineParallelConfig",
    )
