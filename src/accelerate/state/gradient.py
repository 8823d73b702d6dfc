"""Where a training loop stands: whether this step updates, and which loader is being iterated.

A prepared loader registers an :class:`Iteration` while one of its iterators is alive and takes it back in `finally`, so
a validation loop, an early `break` or a second loader leaves nothing behind. The iteration that yielded last answers
`end_of_dataloader` and `remainder`; the outermost one that yielded since the last micro-batch drives accumulation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from accelerate.base.environ import parse_flag_from_env
from accelerate.state.borg import Borg, SharedDict

if TYPE_CHECKING:
    from accelerate.config.gradient_accumulation import GradientAccumulationPlugin


class Iteration:
    """One pass over one prepared loader, written by the loader's iterator.

    `end_of_dataloader` is True from the moment the last batch is handed out; `remainder` is how many samples of that
    last global batch are real (-1: unknown, or all of them); `turn` is the value of `GradientState.turn` at the latest
    batch, so that among several iterations the greatest is the one that yielded last.
    """

    def __init__(self, loader: object) -> None:
        self._loader = weakref.ref(loader)
        self.end_of_dataloader = False
        self.remainder = -1
        self.turn = 0

    @property
    def loader(self) -> Any:
        """The loader that is iterated, or None once it is gone."""
        return self._loader()


class OutsideIteration(Iteration):
    """A loader that registered itself through `_add_dataloader`: it keeps the two facts as attributes of its own."""

    def __init__(self, loader: object, turn: int) -> None:
        self._loader = weakref.ref(loader)
        self.turn = turn

    @property
    def end_of_dataloader(self) -> bool:  # type: ignore[override]
        return getattr(self.loader, "end_of_dataloader", False)

    @property
    def remainder(self) -> int:  # type: ignore[override]
        return getattr(self.loader, "remainder", -1)


class GradientState(Borg):
    """Facts about gradient accumulation and the running iterations, shared by the whole process.

    Args:
        gradient_accumulation_plugin: how gradients are accumulated; a plugin given later replaces the settings.

    `sync_gradients` (plain attribute, assignable) says whether this step updates the weights; `plugin_kwargs` is the
    live dictionary of the settings that differ from their defaults. `turn` is raised by a loader at every batch, and
    `trained` is the turn at the latest backward pass. `between_batches` is called, if it is set, with a loader and None
    when a pass over it begins, and with the pass when it is about to go on or to end.
    """

    _shared_state = SharedDict()
    _known_attrs: ClassVar[list[str]] = ["sync_gradients", "plugin_kwargs", "turn"]

    sync_gradients: bool
    plugin_kwargs: dict[str, Any]
    turn: int
    trained: int
    between_batches: Callable[[Any, Iteration | None], None] | None
    _iterations: list[Iteration]
    _is_xla_gradients_synced: bool

    def __init__(self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> None:
        super().__init__()
        if not self.initialized:
            self.sync_gradients = True
            self.plugin_kwargs = {}
            self.turn = 0
            self.trained = 0
            self.between_batches = None
            self._iterations = []
            self._is_xla_gradients_synced = False
        if gradient_accumulation_plugin is not None:
            self.plugin_kwargs = gradient_accumulation_plugin.to_kwargs()

    @property
    def num_steps(self) -> int:
        """Over how many micro-batches gradients are accumulated."""
        steps = self.plugin_kwargs.get("num_steps")
        return 1 if steps is None else steps

    @property
    def adjust_scheduler(self) -> bool:
        """Whether a prepared scheduler takes accumulation into account."""
        return self.plugin_kwargs.get("adjust_scheduler", True)

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the last batch of a loader updates, however short its window is."""
        return self.plugin_kwargs.get("sync_with_dataloader", True)

    @property
    def sync_each_batch(self) -> bool:
        """Whether ranks exchange gradients at every micro-batch, which costs time and saves memory."""
        return self.plugin_kwargs.get("sync_each_batch", False)

    @property
    def scale_short_window(self) -> bool:
        """Whether a short last window is scaled by its real length instead of `num_steps`."""
        return self.plugin_kwargs.get("scale_short_window", False)

    @property
    def is_xla_gradients_synced(self) -> bool:
        """Whether the gradients of this window were already reduced over XLA replicas; FSDP reduces them itself."""
        return parse_flag_from_env("ACCELERATE_USE_FSDP") or self._is_xla_gradients_synced

    @is_xla_gradients_synced.setter
    def is_xla_gradients_synced(self, is_synced: bool) -> None:
        self._is_xla_gradients_synced = is_synced

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        """Say whether the coming step updates; for loops that count their micro-batches themselves."""
        self.sync_gradients = sync_gradients
        self._is_xla_gradients_synced = False

    def enter(self, iteration: Iteration) -> None:
        """Register an iteration that begins; its iterator calls :meth:`leave` in `finally`."""
        self._iterations.append(iteration)

    def leave(self, iteration: Iteration) -> None:
        """Take back an iteration that ended, was broken off, or outlived a reset of the state."""
        if self.initialized:
            self._iterations = [each for each in self._iterations if each is not iteration]

    def driving(self, since: int, before: Any = None) -> Iteration | None:
        """Return the iteration that an `accumulate` call belongs to, or None when none yielded after turn `since`.

        It is an iteration of the loader `before`, which drove the last call, or else the earliest begun of those that
        yielded after that turn, so that a validation loop which a training loop contains never drives accumulation.
        """
        fresh = [iteration for iteration in self._iterations if iteration.turn > since]
        if len(fresh) > 1:
            fresh = [iteration for iteration in fresh if iteration.loader is before] or fresh
        return fresh[0] if fresh else None

    def is_live(self, iteration: Iteration) -> bool:
        """Whether the loop of `iteration` is still running."""
        return any(each is iteration for each in self._iterations)

    @property
    def running(self) -> list[Iteration]:
        """The running iterations in the order they began."""
        return self._iterations

    @property
    def active(self) -> Iteration | None:
        """The running iteration that yielded last, or None outside every loader."""
        found: Iteration | None = None
        for iteration in self._iterations:
            if (found is None or iteration.turn >= found.turn) and iteration.loader is not None:
                found = iteration
        return found

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the active loader handed out its last batch."""
        active = self.active
        return False if active is None else active.end_of_dataloader

    @property
    def remainder(self) -> int:
        """How many samples of the active loader's last global batch are real; -1 when unknown or all."""
        active = self.active
        return -1 if active is None else active.remainder

    @property
    def active_dataloader(self) -> Any:
        """The loader that yielded last, or None outside every loader."""
        active = self.active
        return None if active is None else active.loader

    @property
    def in_dataloader(self) -> bool:
        """Whether a prepared loader is being iterated."""
        return self.active is not None

    @property
    def dataloader_references(self) -> list[Any]:
        """None, which stands for "outside every loader", then the loaders being iterated in the order they began."""
        loaders = [iteration.loader for iteration in self._iterations]
        return [None, *(loader for loader in loaders if loader is not None)]

    @dataloader_references.setter
    def dataloader_references(self, references: list[Any]) -> None:
        self._iterations = []
        for loader in references:
            if loader is not None:
                self._add_dataloader(loader)

    def _add_dataloader(self, dataloader: object) -> None:
        """Register a loader that has `end_of_dataloader` and `remainder` of its own as the active one."""
        self.turn += 1
        self._iterations.append(OutsideIteration(dataloader, self.turn))

    def _remove_dataloader(self, dataloader: object) -> None:
        """Take back a loader registered with :meth:`_add_dataloader`."""
        for iteration in reversed(self._iterations):
            if iteration.loader is dataloader:
                return self.leave(iteration)
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return _join, (self.plugin_kwargs, self.sync_gradients)

    def __repr__(self) -> str:
        return (
            f"Sync Gradients: {self.sync_gradients}\n"
            f"At end of current dataloader: {self.end_of_dataloader}\n"
            f"Extra samples added: {self.remainder}\n"
            f"Gradient accumulation plugin: {self.plugin_kwargs}\n"
        )

    @staticmethod
    def _reset_state() -> None:
        """Empty the state, for tests and for starting over in the same process."""
        GradientState._shared_state.clear()


def _join(plugin_kwargs: dict[str, Any], sync_gradients: bool) -> GradientState:
    """Unpickle a gradient state: join this process's, or begin it with the settings that were carried over."""
    begins = not GradientState._shared_state
    state = GradientState()
    if begins:
        state.plugin_kwargs, state.sync_gradients = dict(plugin_kwargs), sync_gradients
    return state
