"""Where training stands: random states, the accumulation window, and how far each data loader has come.

A checkpoint may be loaded by more or fewer ranks than wrote it. Then a rank takes up the random states of the rank
with its number, and one that is new draws its own from those of rank 0 and its number. Loaders go on at the same
sample, whatever the size of a step now is. An accumulation window that was under way begins anew, as the gradients of
each rank belong to that rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from accelerate.base.messages import warn_once
from accelerate.checkpointing.layout import LOADERS, gradients_name, numbered, rng_name
from accelerate.checkpointing.manifest import FORMAT
from accelerate.checkpointing.problems import unreadable
from accelerate.checkpointing.records import Record
from accelerate.checkpointing.source import Source
from accelerate.checkpointing.tensors import like, local_of
from accelerate.cluster.topology import Topology
from accelerate.devices.device import Device
from accelerate.devices.random import TORCH_KEY, rng_state, seed_everything, set_rng_state
from accelerate.logging import get_logger
from accelerate.state.gradient import GradientState

logger = get_logger(__name__)

STEP = "step"
WINDOWS = "accumulation_windows"
SCHEDULER_CALLS = "scheduler_calls"
FORMAT_KEY = "checkpoint_format"


class Windows(Protocol):
    """How gradients are accumulated, as far as a checkpoint is concerned."""

    step: int

    def state(self) -> list[dict[str, Any]]:
        """Return where each window of micro-batches stands, as plain data."""

    def load_state(self, windows: list[dict[str, Any]]) -> None:
        """Let the next micro-batches continue these windows."""

    def open_models(self) -> list[torch.nn.Module]:
        """Return the models that hold gradients of an update that is not complete."""

    def restart(self, ratio: float) -> None:
        """Begin at the start of a window, with a step count that is `ratio` times the present one."""


class RandomRecord(Record):
    """The random states of this rank, and its accumulation windows.

    Args:
        topology: which rank this is.
        device: the device whose generators belong to them.
        windows: how gradients are accumulated.
        wanted: what of it is restored: "rng", "step" or both.
        schedulers: prepared schedulers, which count calls until the next update.
    """

    part = "rng"
    everywhere = True

    def __init__(
        self,
        topology: Topology,
        device: Device,
        windows: Windows,
        wanted: Sequence[str] = ("rng", "step"),
        schedulers: Sequence[Any] = (),
    ) -> None:
        super().__init__(rng_name(topology.rank))
        self.topology = topology
        self.device = device
        self.windows = windows
        self.wanted = wanted
        self.schedulers = schedulers

    def state(self) -> Any:
        return {
            STEP: self.windows.step,
            WINDOWS: self.windows.state(),
            SCHEDULER_CALLS: [getattr(each, "accumulated_calls", 0) for each in self.schedulers],
            FORMAT_KEY: FORMAT,
            **rng_state(self.device),
        }

    def _name_in(self, source: Source) -> str:
        """Return the file that this rank reads: its own, or that of rank 0 where it has none."""
        other_world = source.world_size != self.topology.world_size
        return rng_name(0) if other_world and not source.has(self.name) else self.name

    def check(self, source: Source) -> list[str]:
        name = self._name_in(source)
        if not source.has(name):
            return [f"{name} is missing: the random states of rank {self.topology.rank} can't be restored"]
        return unreadable(source, name)

    def restore(self, source: Source) -> None:
        name = self._name_in(source)
        states = dict(source.object(name))
        if "step" in self.wanted:
            self._restore_windows(source, states)
        if "rng" in self.wanted:
            for key in set_rng_state(fitting(states, self.device), device=self.device):
                warn_once(f"{name} has no random state {key!r} for this device: it was saved on another one.")
            if name != self.name:
                seed_everything(derived_seed(states, self.topology.rank), device=self.device)

    def _restore_windows(self, source: Source, states: Mapping[str, Any]) -> None:
        self.windows.step = states.get(STEP, 0)
        if WINDOWS in states:
            self.windows.load_state(states[WINDOWS])
        for scheduler, calls in zip(self.schedulers, states.get(SCHEDULER_CALLS, ()), strict=False):
            scheduler.accumulated_calls = calls
        if source.world_size != self.topology.world_size:
            self.windows.restart(source.world_size / self.topology.world_size)
            for scheduler in self.schedulers:
                scheduler.accumulated_calls = 0


def fitting(states: Mapping[str, Any], device: Device) -> dict[str, Any]:
    """Return random states with that of `device` alone where they were saved on another number of devices."""
    key, fitted = device.spec.rng_key, dict(states)
    if key is not None and isinstance(states.get(key), list | tuple) and len(states[key]) != device.count():
        del fitted[key]
        if (index := device.index or 0) < len(states[key]):
            fitted[key] = states[key][index]
    return fitted


def derived_seed(states: Mapping[str, Any], rank: int) -> int:
    """Return a seed of 32 bits for a rank that a checkpoint doesn't have, from the states of rank 0."""
    generator = torch.Generator()
    generator.set_state(states[TORCH_KEY])
    base = int(torch.randint(2**32, (), generator=generator))
    return int(np.random.SeedSequence((base, rank)).generate_state(1)[0])


class GradientsRecord(Record):
    """The gradients that this rank has accumulated since the last update.

    Args:
        topology: which rank this is.
        models: the models that hold such gradients.
        all_models: all prepared models, by which they are found again.
    """

    part = "step"
    everywhere = True

    def __init__(
        self, topology: Topology, models: Sequence[torch.nn.Module], all_models: Sequence[torch.nn.Module]
    ) -> None:
        super().__init__(gradients_name(topology.rank))
        self.topology = topology
        self.models = models
        self.all_models = all_models

    def state(self) -> Any:
        chosen = set(map(id, self.models))
        return {
            key: local_of(parameter.grad.detach())
            for key, parameter in self._parameters()
            if parameter.grad is not None and id(self.all_models[int(key.partition(".")[0])]) in chosen
        }

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for index, model in enumerate(self.all_models):
            for number, parameter in enumerate(model.parameters()):
                yield f"{index}.{number}", parameter

    def check(self, source: Source) -> list[str]:
        if self._left_out(source):
            return []
        if problems := unreadable(source, self.name):
            return problems
        saved, mine = source.object(self.name), dict(self._parameters())
        others = [key for key in saved if key not in mine or local_of(mine[key]).shape != saved[key].shape]
        return [f"{self.name} holds gradients of other parameters than the models have"] if others else []

    def _left_out(self, source: Source) -> bool:
        return source.world_size != self.topology.world_size

    def restore(self, source: Source) -> None:
        if self._left_out(source):
            warn_once(
                f"{source.folder} was saved by {source.world_size} processes in the middle of accumulating gradients; "
                f"{self.topology.world_size} processes can't take them up, and begin with the next update."
            )
            return
        saved = source.object(self.name)
        for key, parameter in self._parameters():
            if key in saved:
                parameter.grad = like(saved[key].to(parameter.device, copy=True), parameter)


class LoadersRecord(Record):
    """How far all prepared data loaders have come.

    Args:
        loaders: the loaders.
        gradient_state: knows which of them are being iterated.
    """

    part = "data_loaders"

    def __init__(self, loaders: Sequence[Any], gradient_state: GradientState) -> None:
        super().__init__(LOADERS)
        self.loaders = loaders
        self.gradient_state = gradient_state

    def state(self) -> Any:
        return [
            {"position": position_of(loader, self.gradient_state), "sampler_seed": _sampler_seed(loader)}
            for loader in self.loaders
        ]

    def check(self, source: Source) -> list[str]:
        if problems := unreadable(source, self.name):
            return problems
        saved = source.object(self.name)
        if len(saved) != len(self.loaders):
            return [f"{self.name} has the positions of {len(saved)} data loaders, {len(self.loaders)} are prepared"]
        problems = [loader.problem_with(each["position"]) for each, loader in zip(saved, self.loaders, strict=True)]
        return [
            f"{self.name} has loader {index} inside an epoch, and {problem}"
            for index, problem in enumerate(problems)
            if problem is not None
        ]

    def restore(self, source: Source) -> None:
        for loader, saved in zip(self.loaders, source.object(self.name), strict=False):
            if saved["sampler_seed"] is not None and _sampler_seed(loader) is not None:
                loader.get_sampler().initial_seed = saved["sampler_seed"]
            loader.load_state_dict(saved["position"])


class StatefulLoaderRecord(Record):
    """The state of torchdata's stateful loader, as 1.15 saves it.

    Args:
        index: its place among the prepared loaders.
        loader: the prepared loader.
    """

    part = "data_loaders"

    def __init__(self, index: int, loader: Any) -> None:
        super().__init__(numbered("dl_state_dict", index, ".bin"))
        self.loader = loader

    def state(self) -> Any:
        return self.loader.base_dataloader.state_dict()

    def check(self, source: Source) -> list[str]:
        return unreadable(source, self.name)

    def restore(self, source: Source) -> None:
        self.loader.load_state_dict(source.object(self.name))


def position_of(loader: Any, gradient_state: GradientState) -> dict[str, Any]:
    """Return the state of a loader; of one whose last pass was broken off, that of the epoch's start.

    Its next pass begins from the start without a checkpoint too, and draws a new order.
    """
    state, progress = loader.state_dict(), loader.progress
    resumes = (state["batches"], state["shift"]) != (progress.batches, progress.shift)  # loaded, and not taken up yet
    if resumes or not progress.began or _is_running(loader, gradient_state):
        return state
    seeds = {**state["seeds"], "order": None, "workers": None}
    return {**state, "batches": 0, "shift": 0, "seeds": seeds, "stream": None}


def _sampler_seed(loader: Any) -> int | None:
    """Return what the order of a seedable sampler follows from, besides the epoch; None for other samplers."""
    return getattr(loader.get_sampler(), "initial_seed", None)


def _is_running(loader: Any, gradient_state: GradientState) -> bool:
    running = (getattr(each, "progress", None) for each in gradient_state.dataloader_references)
    return any(progress is loader.progress for progress in running)
