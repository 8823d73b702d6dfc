"""Pipeline parallel: the sequence of layers divided over the ranks of an axis, through which micro-batches flow.

A pipeline runs forward and backward passes of many micro-batches together, while a script makes two calls:
`loss = model(batch)` and `accelerator.backward(loss)`. So the first call runs the whole schedule and keeps the
gradients that it finds aside. The loss it returns stands for them: the backward pass of this loss hands each parameter
its gradient, times whatever the loss was scaled by. Accumulation, clipping and hooks of parameters see nothing else.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist

from accelerate.base.messages import message
from accelerate.big_modeling.batches import ExampleInputs, FlatModel
from accelerate.big_modeling.stages import check_split_points, even_stages, first_of_stages
from accelerate.strategies import norms
from accelerate.strategies.axes.base import Axis, Place
from accelerate.strategies.axes.elsewhere import zeros_like
from accelerate.strategies.axes.loss import Release, Returned, WithLoss
from accelerate.strategies.axes.outline import Outline
from accelerate.strategies.axes.parts import Cut, Part
from accelerate.strategies.axes.schedules import build_schedule, rank_of
from accelerate.strategies.axes.settled import Settled, settle
from accelerate.strategies.fsdp2.begin import begin

if TYPE_CHECKING:
    from accelerate.strategies.bundle import Bundle


@dataclass(frozen=True)
class Fitting:
    """What a strategy does with the parts of a rank.

    Args:
        place: puts them on the device, sharded or whole; called once, when a model has been cut.
        compile: compiles what a part computes, in place.
        context: the precision in which parts compute.
        scale: what losses are multiplied by, so that small gradients don't vanish; None: nothing.
        optimizers: those that may hold parameters of a model.
        average: wraps what hands out gradients, to average them with replicas.
    """

    place: Callable[[torch.nn.Module, Sequence[Part]], None]
    compile: Callable[[torch.nn.Module], None]
    context: Callable[[], Any]
    scale: Callable[[], float] | None
    optimizers: Callable[[], Iterable[torch.optim.Optimizer]]
    average: Callable[[torch.nn.Module], torch.nn.Module]


@final
class Pipeline(Axis):
    """Layers, one after the other, divided over ranks."""

    name = "pp"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.count = self.mesh.size() * place.settings.stages_per_process
        self._outlines: weakref.WeakKeyDictionary[torch.nn.Module, Outline] = weakref.WeakKeyDictionary()

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

    def note(self, model: torch.nn.Module) -> None:
        """Remember what a bare model does, before other axes change it."""
        self._outlines[model] = Outline(model, self.split_points(model))

    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        runtime = self.place.runtime
        cpu = torch.device("cpu")
        begin(model, runtime.collectives, cpu, only_main=self.place.only_main).place(model.modules())
        return Pipelined(model, self._outlines.pop(model), self.place)

    def total_norm(self, norm: torch.Tensor, norm_type: float) -> torch.Tensor:
        return norms.norm_over(norm, norm_type, self.mesh.get_group())


@final
class Pipelined(torch.nn.Module):
    """A model of which this rank computes some stages; calling it trains on a batch, see the head of this file.

    It is cut when it is first called, after what it is called with. Then it lets go of the parameters of other ranks'
    stages.

    Args:
        module: the model.
        outline: what it does, and where it is cut.
        place: the axis.
    """

    fitting: Fitting

    def __init__(self, module: torch.nn.Module, outline: Outline, place: Place) -> None:
        super().__init__()
        self.module = module
        self.outline, self.place, self.facts = outline, place, place.settings.facts
        self.group = place.mesh.get_group()
        self.device = place.runtime.device.torch_device
        self.total = len(outline.split_points) + 1
        #: Gradients are averaged over replicas at the next backward pass.
        self.is_synchronised = True
        #: What this rank computes, once the model is cut; no submodules, which would be parameters twice.
        self.settled: Settled | None = None
        self._inputs: ExampleInputs | None = None
        self._piece = 0
        self._scale = 1.0
        self._returned: dict[bool, Returned] = {}
        self._schedules: dict[tuple[bool, bool, int], Any] = {}
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
        least = 1 if self.facts.at_once else self.total
        if batch % self._piece or batch < least * self._piece:
            raise ValueError(_rest(batch, self._piece, least))
        if self.training not in self._returned:
            self._returned[self.training] = self._cut(args, kwargs)
        pieces = inputs.pieces(args, kwargs, batch, self._piece, self.device)
        named = {f"input_{number}": each for number, each in enumerate(pieces)}
        schedule = self._schedule(batch // self._piece)
        return self._returned[self.training].answer(self._run(schedule, batch // self._piece, named))

    def _run(self, schedule: Any, count: int, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch; with gradients enabled, one that hands out gradients."""
        losses: list[torch.Tensor] = []
        rest = {"target": torch.zeros(count), "losses": losses, "return_outputs": False}
        self._scale = 1.0
        if not torch.is_grad_enabled():
            schedule.eval(**inputs, **rest)
            self._parts.reshard()
            return self._agreed(losses)[0]
        if self.fitting.scale is not None:
            self._scale = self.fitting.scale()
        with self._gradients() as gradients:
            schedule.step(**inputs, **rest)
        loss, scale = self._agreed(losses)
        release: Any = self._release[0]
        silent = getattr(release, "no_sync", nullcontext)
        with nullcontext() if self.is_synchronised else silent():
            return release(loss, gradients, self._factor(gradients, scale))

    @property
    def _parts(self) -> Settled:
        assert self.settled is not None
        return self.settled

    def _agreed(self, losses: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of which the rank of the last stage has the shares, and what it was scaled by, everywhere."""
        loss = torch.stack(losses).detach().float().sum() if losses else torch.zeros((), device=self.device)
        both = torch.stack([loss / self._scale, torch.full_like(loss, self._scale)])
        dist.broadcast(both, group=self.group, group_src=rank_of(self.total - 1, self.place.mesh.size(), self.facts))
        return both[0], both[1]

    def _factor(self, gradients: list[torch.Tensor], scale: torch.Tensor) -> torch.Tensor:
        """Return what makes true gradients of scaled ones; not a number on all ranks where one of them overflowed."""
        if self.fitting.scale is None:
            return 1 / scale
        norm = norms.total_norm([[each] for each in gradients], float("inf")).to(self.device)
        overflow = (~torch.isfinite(norm)).float()
        dist.all_reduce(overflow, dist.ReduceOp.MAX)  # replicas and shards skip this update too
        return torch.where(overflow > 0, torch.nan, 1 / scale)

    @contextmanager
    def _gradients(self) -> Iterator[list[torch.Tensor]]:
        """Collect the gradients that the body computes in the list that is yielded, and leave those that were there."""
        own = self._parts.own
        before = [parameter.grad for parameter in own]
        found: list[torch.Tensor] = []
        try:
            for parameter in own:
                parameter.grad = None
            yield found
            for shared in self._parts.shared:
                shared.add_up()
            found += [zeros_like(each) if each.grad is None else each.grad for each in own]
        finally:
            for parameter, gradient in zip(own, before, strict=True):
                parameter.grad = gradient

    def _learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExampleInputs:
        """Learn from the first batch what batches are like."""
        from torch.utils import _pytree as pytree

        sizes = [
            int(each.shape[0])
            for each in pytree.tree_leaves((args, kwargs))
            if isinstance(each, torch.Tensor) and each.dim()
        ]
        count = self.place.settings.num_microbatches or self.total
        if not sizes or sizes[0] % count:
            raise ValueError(_no_pieces(sizes[0] if sizes else 0, count))
        self._inputs, self._piece = ExampleInputs(args, kwargs, sizes[0]), sizes[0] // count
        return self._inputs

    def _cut(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Returned:
        """Cut the model as it is now, for training or evaluation; return what it returns."""
        assert self._inputs is not None
        inputs, returned = self._inputs, Returned()
        example = inputs.pieces(args, kwargs, self._piece, self._piece, torch.device("cpu"))

        def around(copy: torch.nn.Module) -> torch.nn.Module:
            return FlatModel(WithLoss(copy, self.place.settings.loss, returned), inputs).train(self.training)

        with torch.autocast(self.device.type, enabled=False):
            cut = Cut(*self.outline.trace(around, example), self.module, "model.model.")
        if cut.count != self.total:
            raise ValueError(_not_cut(self.outline.split_points, cut.count))
        if self.settled is None:
            parts = [Part(number) for number in range(self.total)]
            for part in parts:
                part.add(cut.body(part.number, part, self.device), self.training)
            self.settled = settle(self.module, parts, self.place, self.fitting)
            self._release = [self.fitting.average(Release(self.settled.own))]
        else:
            self.settled.add(cut, self.training, self.device)
        for part in self.settled.parts:
            self.fitting.compile(part.bodies[self.training].run)
        return returned

    def _schedule(self, count: int) -> Any:
        """Return what runs so many micro-batches through the stages."""
        key = self.training, torch.is_grad_enabled(), count
        for part in self._parts.parts:
            part.train(self.training)
        if key not in self._schedules:

            def share(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
                return output * (self._scale / count)

            parts = self._parts.parts
            self._schedules[key] = build_schedule(
                parts, self.total, count, self.facts, share, torch.is_grad_enabled(), self.device, self.group
            )
        return self._schedules[key]


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
