"""Gradient accumulation: which micro-batches make one update, and how their gradients are weighted.

A window belongs to the models passed to `accumulate`, so that two models trained in turn don't count each other's
micro-batches, and it ends with the data loader that the training loop iterates, so that a validation loop, an early
`break` or a second loader never change when an update happens.

Two corrections are made when a window closes, just before clipping or stepping: a window shorter than
`gradient_accumulation_steps` is scaled by its real length when `scale_short_window` is set, and losses weighted by
items (tokens) are divided by the number of items of the whole window over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.comm.collectives import Collectives
from accelerate.state.gradient import GradientState, Iteration
from accelerate.strategies.unwrap import peel


@dataclass(eq=False)
class Window:
    """The micro-batches of one set of models since its last update."""

    models: tuple[torch.nn.Module, ...] = ()
    step: int = 0  #: micro-batches since the loader began; an update is due when it is a multiple of num_steps
    length: int = 0  #: micro-batches since the last update
    due: bool = False  #: the update of this window is due, or has been made
    unsettled: bool = False  #: it is due and its gradients have not been corrected yet
    items: torch.Tensor | None = None  #: items (tokens) of this rank since the last update; None: not weighted
    weight: torch.Tensor | int | None = None  #: items of the current micro-batch
    iteration: Iteration | None = None  #: the data loader iteration that the last micro-batch came from
    turn: int = 0  #: the turn of the data loaders that it came from
    calls: int = 0  #: micro-batches made from that turn so far
    calls_before: int = 1  #: micro-batches made from the turn before it


class Accumulation:
    """Decides when gradients are synchronised and applied.

    Args:
        gradient_state: holds `sync_gradients`, the plugin's values and the live data loader iterations.
        collectives: sums the item counts of the data-parallel ranks.
        no_sync: returns the context in which backward passes of a model do not communicate.
        all_models: the models that a window without models of its own speaks of.
    """

    def __init__(
        self,
        gradient_state: GradientState,
        collectives: Collectives,
        no_sync: Callable[[torch.nn.Module], AbstractContextManager[Any]],
        all_models: Sequence[torch.nn.Module],
    ) -> None:
        self.gradient_state = gradient_state
        self.collectives = collectives
        self.no_sync = no_sync
        self.all_models = all_models
        self.windows: dict[tuple[int, ...], Window] = {}
        self.current = Window()

    @property
    def step(self) -> int:
        """Micro-batches of the current window's models since their data loader began."""
        return self.current.step

    @step.setter
    def step(self, value: int) -> None:
        self.current.step = value
        if self.current not in self.windows.values():
            self.windows[_RESTORED] = self.current

    def window_of(self, models: tuple[torch.nn.Module, ...]) -> Window:
        """Return the window of `models`; the first one asked for takes up a restored position."""
        key = tuple(map(id, models))
        window = self.windows.get(key)
        if window is None:
            window = self.windows.pop((_AT_PLACES, *self._places_of(models)), None)
            window = window or self.windows.pop(_RESTORED, None) or Window()
            window.models = models
            self.windows[key] = window
        return window

    def begin(self, models: tuple[torch.nn.Module, ...], num_items: torch.Tensor | int | None) -> bool:
        """Count one micro-batch of `models` and return whether an update is due after it."""
        window = self.current
        if window.models != models or not self.windows:
            window = self.current = self.window_of(models)
        state = self.gradient_state
        steps = state.num_steps
        if window.due:
            window.length, window.items = 0, None
        window.length += 1
        window.step += 1
        window.due = due = self._is_last(window) or window.step % steps == 0
        if num_items is not None or window.items is not None:
            self._weigh(window, num_items)
        window.unsettled = due and (window.items is not None or (window.length < steps and state.scale_short_window))
        state._set_sync_gradients(due)
        return due

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return `loss` as it counts in its window: weighted by its items, or divided by the number of steps."""
        if self.current.weight is not None:
            return loss * self.current.weight
        steps = self.gradient_state.num_steps
        return loss if steps == 1 else loss / steps

    def state(self) -> list[dict[str, Any]]:
        """Return where each window stands, as plain data; its models by their places among all models."""
        return [
            {
                "models": list(self._places(key, window)),
                "current": window is self.current,
                "items": None if window.items is None else window.items.tolist(),
                **{name: getattr(window, name) for name in _KEPT},
            }
            for key, window in self.windows.items()
        ]

    def load_state(self, windows: list[dict[str, Any]]) -> None:
        """Continue windows where :meth:`state` was called; their gradients are not part of it."""
        self.forget()
        for saved in windows:
            window = Window(**{name: saved[name] for name in _KEPT})
            if saved["items"] is not None:
                window.items = torch.as_tensor(saved["items"], device=self.collectives.device)
            known = all(0 <= place < len(self.all_models) for place in saved["models"])
            self.windows[(_AT_PLACES, *saved["models"]) if known else _RESTORED] = window
            if saved["current"]:
                self.current = window

    def open_models(self) -> list[torch.nn.Module]:
        """Return the models that hold gradients of an update that is not complete."""
        everything = range(len(self.all_models))
        chosen = {
            place
            for key, window in self.windows.items()
            if window.length and not window.due
            for place in self._places(key, window) or everything
        }
        return [model for place, model in enumerate(self.all_models) if place in chosen or -1 in chosen]

    def _places(self, key: tuple[int, ...], window: Window) -> tuple[int, ...]:
        """Return which of all models a window is about; -1: one that is not known."""
        if key == _RESTORED or key[:1] == (_AT_PLACES,):
            return (-1,) if key == _RESTORED else key[1:]
        return self._places_of(window.models)

    def _places_of(self, models: tuple[torch.nn.Module, ...]) -> tuple[int, ...]:
        places = {id(peel(model, parallel=True)[0]): place for place, model in enumerate(self.all_models)}
        return tuple(places.get(id(peel(model, parallel=True)[0]), -1) for model in models)

    def restart(self, ratio: float) -> None:
        """Begin at the start of a window, where another number of processes takes over.

        Args:
            ratio: how many micro-batches of the processes before stand for one of the present ones.
        """
        steps = int(self.current.step * ratio)
        self.forget()
        self.step = steps - steps % self.gradient_state.num_steps

    def forget(self) -> None:
        """Forget all windows; nothing is under way any more."""
        self.windows.clear()
        self.current = Window()

    def settle(self) -> None:
        """Correct the gradients of a window that is due, once; called before gradients are clipped or applied."""
        window = self.current
        if not window.unsettled:
            return
        window.unsettled = False
        factor: torch.Tensor | float
        if window.items is not None:
            total = self.collectives.all_reduce(window.items.clone(), "sum")
            factor = self.collectives.world_size / total.clamp(min=1)
        else:
            factor = self.gradient_state.num_steps / window.length
        scale_gradients(window.models or tuple(self.all_models), factor)

    def _is_last(self, window: Window) -> bool:
        """Whether this micro-batch is the last one of the data loader that the training loop iterates.

        A loop that makes several micro-batches of each batch ends with as many of the last batch.
        """
        state = self.gradient_state
        if state.turn != window.turn:
            iteration = state.driving(window.turn, window.iteration and window.iteration.loader)
            if iteration is not None:
                window.iteration, window.turn = iteration, state.turn
                window.calls_before, window.calls = max(window.calls, 1), 0
        window.calls += 1
        if window.iteration is None or not window.iteration.end_of_dataloader or not state.sync_with_dataloader:
            return False
        if not state.is_live(window.iteration) or window.calls < window.calls_before:
            return False
        window.step = 0
        return True

    def _weigh(self, window: Window, num_items: torch.Tensor | int | None) -> None:
        if (num_items is None) != (window.items is None) and window.length > 1:
            raise ValueError(
                message(
                    given=f"accumulate(num_items={num_items!r}) for micro-batch {window.length} of a window",
                    why="the micro-batches of one update are either all weighted by their number of items or none is",
                    allowed="num_items on every micro-batch of a window, or on none",
                    do="pass num_items (for example the number of label tokens) in each call of `accumulate`",
                )
            )
        window.weight = num_items
        count = torch.as_tensor(num_items, device=self.collectives.device).detach()
        window.items = count.clone() if window.items is None else window.items + count


#: The key of a window whose position was restored before its models were seen.
_RESTORED = (-1,)
#: What the key of a restored window begins with until its models are seen; their places follow.
_AT_PLACES = -2

#: What of a window goes into a checkpoint as it is.
_KEPT = ("step", "length", "due", "calls", "calls_before")


class Accumulate:
    """The context that `Accelerator.accumulate` returns: one micro-batch of a window."""

    __slots__ = ("accumulation", "contexts", "models", "num_items")

    def __init__(
        self, accumulation: Accumulation, models: tuple[torch.nn.Module, ...], num_items: torch.Tensor | int | None
    ) -> None:
        self.accumulation = accumulation
        self.models = models
        self.num_items = num_items
        self.contexts: list[AbstractContextManager[Any]] | None = None

    def __enter__(self) -> None:
        accumulation = self.accumulation
        if accumulation.begin(self.models, self.num_items) or accumulation.gradient_state.sync_each_batch:
            return
        self.contexts = []
        for model in self.models:
            context = accumulation.no_sync(model)
            context.__enter__()
            self.contexts.append(context)

    def __exit__(self, *error: Any) -> None:
        while self.contexts:
            self.contexts.pop().__exit__(*error)
        self.accumulation.current.weight = None  # a loss outside of the micro-batch is not weighted


@torch.no_grad()
def scale_gradients(models: Sequence[torch.nn.Module], factor: torch.Tensor | float) -> None:
    """Multiply the gradients of `models` in place with `factor` (a number or a 0-d tensor)."""
    from accelerate.strategies.norms import gradients_by_mesh  # only who weights losses pays for DTensors

    parameters = dict.fromkeys(parameter for model in models for parameter in model.parameters())
    for gradients in gradients_by_mesh(parameters).values():
        torch._foreach_mul_(gradients, factor)
