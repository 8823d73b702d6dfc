"""A run of any number of ranks in one process: what one of them holds and sends, counted rather than computed.

The code that divides and shards models in training does it here too, on the meta device, in a process group of torch's
`fake` backend, which has every rank but this one in name only. A training step then runs on tensors without values
(`FakeTensorMode`), so 405 billion parameters on 1,024 ranks take as little memory as a tiny model.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from accelerate.base.messages import message
from accelerate.checkpointing.tensors import like, local_of
from accelerate.comm.collectives import Alone
from accelerate.strategies.axes.attention import over_all
from accelerate.strategies.axes.outside import replicate_rest
from accelerate.strategies.axes.plan import plan_of, resolved
from accelerate.strategies.axes.tensor import divide_from
from accelerate.strategies.divided import replicated
from accelerate.strategies.fsdp2.begin import Beginning
from accelerate.strategies.fsdp2.recompute import recompute
from accelerate.strategies.fsdp2.sharding import shard_from, units_in
from accelerate.strategies.planning.facts import Subject, plugin_for, units_for
from accelerate.strategies.planning.meshes import Mesh
from accelerate.strategies.planning.plan import Rank
from accelerate.strategies.planning.refusals import check_fit
from accelerate.strategies.planning.traffic import GATHER, REDUCE, SCATTER, Messages, combined
from accelerate.strategies.planning.training import Training
from accelerate.strategies.planning.watch import Watch

#: Computes the loss of a model for one micro-batch of so many sequences of so many tokens.
Step = Callable[[torch.nn.Module, int, int], torch.Tensor]

CPU, META = torch.device("cpu"), torch.device("meta")
#: The kinds of messages that go along an axis; two axes may be the same ranks.
ALONG = {"tp": (GATHER, REDUCE), "cp": (GATHER, SCATTER), "shard": (GATHER, SCATTER), "replicate": (REDUCE,)}
#: Values to begin with: none, on the meta device.
NOTHING = Beginning(Alone(META), META, from_main=False)


@dataclass(frozen=True)
class Simulated:
    """What was counted on one rank, in bytes.

    Args:
        parameters: their storages, padding of shards included.
        elements: how many elements of parameters the rank has, without padding.
        gradients: their storages after a backward pass; None where no step was run.
        optimizer: the states, with the tensors that count steps.
        messages: what was sent in one update.
        peak: the most that was alive at any moment.
    """

    parameters: int
    elements: int
    gradients: int | None = None
    optimizer: int | None = None
    messages: tuple[Messages, ...] | None = None
    peak: int | None = None

    def differences(self, rank: Rank) -> list[str]:
        """Return in what the formulas say something else of the same rank; the peak, a bound, is left out."""
        planned = {name: getattr(rank.memory, name) for name in ("parameters", "gradients", "optimizer")}
        planned |= {f"{each.kind} along {each.axis}": each.payload for each in rank.messages}
        counted = {name: getattr(self, name) for name in ("parameters", "gradients", "optimizer")}
        counted |= {f"{each.kind} along {each.axis}": each.payload for each in self.messages or ()}
        if self.messages is None:
            planned, counted = {"parameters": planned["parameters"]}, {"parameters": self.parameters}
        return [
            f"{name}: {counted.get(name, 0)} bytes are counted, {planned.get(name, 0)} computed"
            for name in {**planned, **counted}
            if planned.get(name, 0) != counted.get(name, 0)
        ]


def language_step(model: torch.nn.Module, batch: int, length: int) -> torch.Tensor:
    """Return the loss of a language model, which takes tokens and labels, as those of transformers do."""
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    found: Any = model(input_ids=tokens, labels=tokens)
    loss: torch.Tensor = found if isinstance(found, torch.Tensor) else found.loss
    return loss


def step_for(model: torch.nn.Module) -> Step | None:
    """Return what computes the loss of a model, if it takes tokens and labels; None for others."""
    takes = inspect.signature(model.forward).parameters
    return language_step if {"input_ids", "labels"} <= set(takes) else None


def simulate_mesh(
    subject: Subject, mesh: Mesh, training: Training, *, rank: int = 0, step: Step | None = language_step
) -> Simulated:
    """Return what one rank of a mesh holds and sends, counted in a simulation.

    Args:
        subject: the model; it is not changed.
        mesh: the sizes of the axes.
        training: how it is trained.
        rank: which one.
        step: computes a loss; None: the model is sharded, and no step is run.

    Raises:
        ValueError: the model doesn't fit the mesh, or the mesh is one that isn't simulated.
        RuntimeError: this process is part of a run.
    """
    check_fit(subject, mesh, training)
    _check_simulated(mesh)
    dtype = torch.bfloat16 if training.precision == "pure_bf16" else torch.float32
    model = copy.deepcopy(subject.model).to(META).to(dtype)
    with _fake_group(mesh.size, rank), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says of tensors without values
        whole, views = _device_meshes(mesh)
        _spread(Subject(model, subject.shape, subject.no_split, subject.tp_plan), mesh, training, whole, views)
        held = [local_of(each) for each in model.parameters()]
        counted = Simulated(_bytes(held), sum(each.numel() for each in held))
        if step is None:
            return counted
        axes = {
            (kind, str(view.get_group().group_name)): (name, view.size())
            for name, view in views.items()
            for kind in ALONG[name]
        }
        return _run(model, mesh, training, step, views, Watch(axes), counted)


def _check_simulated(mesh: Mesh) -> None:
    if mesh.pp > 1 or mesh.sp > 1:
        raise ValueError(
            message(
                given=f"a simulation of the mesh {mesh}",
                why="stages of a pipeline, and DeepSpeed's exchange of heads, need all their ranks to run",
                allowed="dp_replicate, dp_shard, tp and cp",
                do="leave the simulation out: the formulas cover these axes too",
            )
        )


@contextmanager
def _fake_group(size: int, rank: int) -> Iterator[None]:
    """Make this process one of `size` ranks in the body, of which the others exist in name only."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RuntimeError(
            message(
                given="a simulation in a process that is part of a run",
                why="the process group of the run would be in the way",
                allowed="processes that were started alone",
                do="simulate in a script of its own, or with `accelerate estimate-memory --simulate`",
            )
        )
    _forget_meshes()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """Forget what torch remembers of DTensors: it takes meshes of one shape for equal, whatever group they are of."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()


def _device_meshes(mesh: Mesh) -> tuple[DeviceMesh, dict[str, DeviceMesh]]:
    """Return the mesh of a run, and the axes of it that messages go along: shard, replicate, tp and cp."""
    whole = init_device_mesh("cpu", tuple(mesh.sizes().values()), mesh_dim_names=tuple(mesh.sizes()))
    views = {"tp": whole["tp"], "cp": whole["cp"], "replicate": whole["dp_replicate"]}
    if mesh.is_sharded:
        views["shard"] = whole["dp_shard", "cp"]._flatten("dp_shard_cp") if mesh.cp > 1 else whole["dp_shard"]
    elif mesh.cp > 1:
        views["replicate"] = whole["dp_replicate", "cp"]._flatten("dp_cp")
    return whole, {name: each for name, each in views.items() if each.size() > 1}


def _spread(subject: Subject, mesh: Mesh, training: Training, whole: DeviceMesh, views: dict[str, DeviceMesh]) -> None:
    """Divide and shard a model on meta in place, as strategies do."""
    model = subject.model
    units = units_for(subject)
    if mesh.tp > 1:
        divide_from(model, resolved(model, plan_of(model, subject.tp_plan)), views["tp"], NOTHING)
    if mesh.is_sharded:
        settings = {
            "reshard_after_forward": training.reshard_after_forward,
            "activation_checkpointing": training.activation_checkpointing,
        }
        plugin = plugin_for(subject, **settings)
        plugin.set_auto_wrap_policy(model)
        if training.precision == "bf16":
            plugin.set_mixed_precision("bf16")
        over = whole["dp_replicate", _flat_name(mesh)] if mesh.dp_replicate > 1 else views["shard"]
        shard_from(model, plugin, over, NOTHING, set())
        return
    if training.activation_checkpointing:
        recompute(module for unit in units.blocks for module in unit)
    if mesh.tp > 1 and mesh.replicas == 1:
        replicate_rest(model, views["tp"])
    if mesh.replicas > 1 and not mesh.is_ddp:
        replicated(model, views["replicate"])


def _flat_name(mesh: Mesh) -> str:
    return "dp_shard_cp" if mesh.cp > 1 else "dp_shard"


def _run(
    model: torch.nn.Module,
    mesh: Mesh,
    training: Training,
    step: Step,
    views: dict[str, DeviceMesh],
    watch: Watch,
    counted: Simulated,
) -> Simulated:
    """Run an update on tensors without values, and return what was counted."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    length = training.sequence_length // mesh.sequence
    autocast = training.precision == "bf16" and not mesh.is_sharded
    with FakeTensorMode(allow_non_fake_inputs=True), ExitStack() as stack:
        _to_cpu(model)
        trained = [each for each in model.parameters() if each.requires_grad]
        optimizer = _optimizer(trained, training, mesh)
        if "cp" in views:
            stack.enter_context(_over_sequences(views["cp"], length))
        stack.enter_context(watch.resizing())
        stack.enter_context(watch)
        watch.note([*trained, *_states(optimizer)])
        for left in reversed(range(training.passes(mesh.pp))):
            _synchronise(model, mesh, not left)
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                loss = step(model, training.batch_size, length)
            loss.backward()
            del loss
        gradients = [local_of(each.grad) for each in trained if each.grad is not None]
        optimizer.step()
        messages = watch.messages
        if mesh.is_ddp:  # its reducer refuses the fake group: what it would send is the gradients
            sent = Messages(REDUCE, "replicate", mesh.replicas, sum(map(_size, gradients)))
            messages = tuple(combined([*messages, sent]))
    held = Simulated(counted.parameters, counted.elements, _bytes(gradients), _bytes(_states(optimizer)))
    return Simulated(held.parameters, held.elements, held.gradients, held.optimizer, messages, watch.peak)


def _to_cpu(model: torch.nn.Module) -> None:
    """Put a model on the meta device into host memory, in place, with tensors that have no values.

    `Module.to_empty` would look at DTensors, whose parts have another size on the last ranks, as a whole.
    """
    known: dict[torch.Tensor, Any] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter not in known:
                known[parameter] = torch.nn.Parameter(_empty(parameter), requires_grad=parameter.requires_grad)
                known[parameter].__dict__.update(parameter.__dict__)
            module._parameters[name] = None if parameter is None else known[parameter]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else torch.empty_like(buffer, device=CPU)


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return like(torch.empty_like(local_of(tensor), device=CPU), tensor)


def _synchronise(model: torch.nn.Module, mesh: Mesh, is_last: bool) -> None:
    """Let replicas of divided models average gradients with the last micro-batch alone, as `accumulate` does."""
    for module in () if mesh.is_sharded else units_in(model):
        module.set_requires_gradient_sync(is_last, recurse=False)


@contextmanager
def _over_sequences(mesh: DeviceMesh, length: int) -> Iterator[None]:
    """Let attention see the sequences whose parts the ranks of `mesh` have, as context parallel does on a CPU."""
    functional: Any = torch.nn.functional
    whole = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = over_all(whole, mesh, torch.arange(length))
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = whole


def _optimizer(trained: list[Any], training: Training, mesh: Mesh) -> torch.optim.Optimizer:
    """Return an optimizer that has its states."""
    kinds: dict[str, Any] = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
        "sgd": torch.optim.SGD,
        "sgd_momentum": partial(torch.optim.SGD, momentum=0.9),
    }
    together = not (mesh.tp > 1 and mesh.is_sharded)  # torch updates DTensors of one mesh together
    optimizer: torch.optim.Optimizer = kinds[training.optimizer](trained, lr=1e-3, foreach=together)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _states(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found = (each for state in optimizer.state.values() for each in state.values())
    return [local_of(each) for each in found if isinstance(each, torch.Tensor)]


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the storages of tensors, each counted once."""
    return sum({storage._cdata: storage.nbytes() for storage in (each.untyped_storage() for each in tensors)}.values())
