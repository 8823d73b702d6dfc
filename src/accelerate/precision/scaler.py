"""Loss scaling for fp16: which updates were skipped, optimizer by optimizer, and when the scale may change.

`torch.amp.GradScaler` notes for each optimizer whether its gradients overflowed; that note, rather than whether
`step` was called, says that an update was skipped, so it holds for fused optimizers too. The scale changes once no
other optimizer waits with gradients that were computed with the present one: changing it earlier would unscale
them by the wrong factor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from accelerate.base.messages import message
from accelerate.precision.base import Precision, PrecisionOptions


class Scaled(Precision):
    """Scales the loss, and does nothing else; with a scaler of None, or a disabled one, it is full precision.

    Args:
        device: where models run.
        options: what a person said besides the name of the precision.
        scaler: the scaler to use instead of a new one.
    """

    def __init__(self, device: torch.device, options: PrecisionOptions | None = None, *, scaler: Any = None) -> None:
        super().__init__(device, options)
        handler = self.options.scaler
        settings = {} if handler is None else handler.to_kwargs()
        self.scaler = torch.amp.GradScaler(device.type, **settings) if scaler is None else scaler
        self._watched: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    @property
    def _scales(self) -> bool:
        return self.scaler is not None and self.scaler.is_enabled()

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        self._watched.add(optimizer)

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        if self._scales:
            self._scale_again()
            loss = self.scaler.scale(loss)
        super().backward(loss, **kwargs)

    def unscale(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        if not self._scales:
            return
        for optimizer in map(self._inside, optimizers):
            if has_gradients(optimizer):
                self._begin(optimizer)
                if self._stage(optimizer) is OptState.READY:
                    self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> tuple[Any, bool]:
        if not self._scales or not has_gradients(optimizer):
            return super().step(optimizer, closure)
        if closure is not None:
            raise RuntimeError(_NO_CLOSURE)
        self._begin(optimizer)
        result = self.scaler.step(optimizer)
        skipped = any(found.item() for found in self.scaler._found_inf_per_device(optimizer).values())
        if not any(self._waits(other) for other in self._watched if other is not optimizer):
            self.scaler.update()
        return result, skipped

    def _inside(self, optimizer: Any) -> torch.optim.Optimizer:
        """Return the watched optimizer inside a prepared one; any other optimizer as it is."""
        inner = optimizer if optimizer in self._watched else getattr(optimizer, "optimizer", optimizer)
        return inner if inner in self._watched else optimizer

    def _stage(self, optimizer: torch.optim.Optimizer) -> OptState:
        states = self.scaler._per_optimizer_states
        return states[id(optimizer)]["stage"] if id(optimizer) in states else OptState.READY

    def _waits(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether `optimizer` has gradients of the present scale which it has not stepped with yet."""
        stage = self._stage(optimizer)
        return stage is OptState.UNSCALED or (stage is OptState.READY and has_gradients(optimizer))

    def _scale_again(self) -> None:
        """Undo the unscaling of gradients nobody stepped with: a backward pass may add scaled ones to them."""
        for optimizer in self._watched:
            if self._stage(optimizer) is OptState.UNSCALED:
                del self.scaler._per_optimizer_states[id(optimizer)]
                multiply(gradients(optimizer), self.scaler.get_scale())

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Let `optimizer` take another step although one that waits has kept the scale from being updated."""
        if self._stage(optimizer) is not OptState.STEPPED:
            return
        states = self.scaler._per_optimizer_states
        unscaled = {key: states.pop(key) for key in list(states) if states[key]["stage"] is OptState.UNSCALED}
        before = self.scaler.get_scale()
        self.scaler.update()
        self.scaler._per_optimizer_states.update(unscaled)
        self._rescale(self.scaler.get_scale() / before)

    def _rescale(self, factor: float) -> None:
        """Multiply the gradients that still carry the loss scale, after the scale itself was multiplied by `factor`."""
        ready = [optimizer for optimizer in self._watched if self._stage(optimizer) is OptState.READY]
        carrying = {id(gradient): gradient for optimizer in ready for gradient in gradients(optimizer)}
        multiply(carrying.values(), factor)


def multiply(tensors: Iterable[torch.Tensor], factor: float) -> None:
    """Multiply tensors in place, all at once."""
    listed = list(tensors)
    if listed and factor != 1:
        torch._foreach_mul_(listed, factor)


def gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the gradients that `optimizer` would step with."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield parameter.grad


def has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` has anything to step with."""
    return next(gradients(optimizer), None) is not None


_NO_CLOSURE = message(
    given="optimizer.step(closure) in fp16",
    why="a closure runs backward passes of its own, whose gradients the scaler never sees unscaled",
    allowed="optimizer.step() without a closure in fp16, or a closure in any other precision",
    do="use mixed_precision='bf16' or 'no' with optimizers such as LBFGS",
)
