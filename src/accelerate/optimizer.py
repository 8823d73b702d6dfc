"""The optimizer that a prepared script gets back.

It steps only when gradients are complete, through the precision (which knows whether the update was skipped), and
is in every other respect the optimizer inside: same groups, same state, same hooks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.comm.tree import send_to_device
from accelerate.precision.base import Precision
from accelerate.precision.scaler import Scaled
from accelerate.state.accelerator_state import AcceleratorState
from accelerate.state.gradient import GradientState
from accelerate.state.partial import PartialState


def move_to_device(state: Any, device: torch.device | str) -> Any:
    """Return `state` (tensors in lists, tuples and dictionaries) with its tensors on `device`."""
    return send_to_device(state, device)


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Wraps `optimizer` so that it takes part in accumulation, mixed precision and device placement.

    Args:
        optimizer: the optimizer that does the work; found again as `.optimizer`.
        device_placement: move state that the optimizer already has to the device of the process.
        scaler: a gradient scaler to step through, for use without a `precision`.
        precision: what steps the optimizer; full precision, or the given scaler, by default.
        before_step: called just before gradients are applied.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device_placement: bool = True,
        scaler: Any = None,
        *,
        precision: Precision | None = None,
        before_step: Callable[[], None] | None = None,
    ) -> None:
        # The base class is for isinstance; initialising it would give this object groups and state of its own.
        self.optimizer = optimizer
        self.device_placement = device_placement
        self.precision = precision if precision is not None else _stepping_through(scaler)
        self.before_step = before_step
        self.gradient_state = GradientState()
        self._is_overflow = False
        self._accelerate_step_called = False
        self._takes_set_to_none = _takes_set_to_none(optimizer)
        self.precision.watch(optimizer)
        if device_placement and optimizer.state:
            place_state(optimizer, PartialState().device)

    def __getattr__(self, name: str) -> Any:
        # What the base class would have set up (hooks, for one) is that of the optimizer inside.
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def state(self) -> Any:
        """The state of the optimizer inside."""
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def param_groups(self) -> Any:
        """The parameter groups of the optimizer inside."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, param_groups: Any) -> None:
        self.optimizer.param_groups = param_groups

    @property
    def defaults(self) -> Any:
        """The defaults of the optimizer inside."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: Any) -> None:
        self.optimizer.defaults = defaults

    @property
    def scaler(self) -> Any:
        """The gradient scaler that steps go through, None without one."""
        return self.precision.scaler

    @scaler.setter
    def scaler(self, scaler: Any) -> None:
        self.precision = _stepping_through(scaler)
        self.precision.watch(self.optimizer)

    @property
    def accelerator_state(self) -> AcceleratorState:
        """The state of the `Accelerator`."""
        return AcceleratorState()

    @property
    def step_was_skipped(self) -> bool:
        """Whether the latest update was left out because gradients overflowed."""
        return self._is_overflow

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the optimizer inside."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer inside as a dictionary."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dictionary into the optimizer inside, on the devices of its parameters."""
        self.optimizer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear gradients, when this step updates the weights; in between they are being accumulated.

        Args:
            set_to_none: free gradients rather than fill them with zeros; None is True where the optimizer can choose.

        Raises:
            ValueError: the optimizer inside can't choose.
        """
        if not self.gradient_state.sync_gradients:
            return
        if self._takes_set_to_none:
            self.optimizer.zero_grad(set_to_none=set_to_none is not False)
        elif set_to_none is None:
            self.optimizer.zero_grad()
        else:
            raise ValueError(_no_set_to_none(self.optimizer, set_to_none))

    def train(self) -> None:
        """Switch an optimizer that has modes (a schedule-free one) to training; nothing for the others."""
        _call_if_present(self.optimizer, "train")

    def eval(self) -> None:
        """Switch an optimizer that has modes (a schedule-free one) to evaluation; nothing for the others."""
        _call_if_present(self.optimizer, "eval")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights, when this step updates them; return what the optimizer inside returned."""
        if not self.gradient_state.sync_gradients:
            return None
        if self.before_step is not None:
            self.before_step()
        result, self._is_overflow = self.precision.step(self.optimizer, closure)
        self._accelerate_step_called = not self._is_overflow
        return result

    def _switch_parameters(self, parameters_map: dict[Any, Any]) -> None:
        """Replace parameters in every group by what they have become."""
        for group in self.optimizer.param_groups:
            group["params"] = [parameters_map.get(parameter, parameter) for parameter in group["params"]]

    def __getstate__(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer,
            "device_placement": self.device_placement,
            "scaler": self.scaler,
            "_is_overflow": self._is_overflow,
            "_is_accelerate_prepared": self.__dict__.get("_is_accelerate_prepared", False),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        extra = dict(state)
        # Already placed where it was pickled; where it goes next is up to whoever loads it.
        self.__init__(extra.pop("optimizer"), False, extra.pop("scaler"))  # type: ignore[misc]
        self.__dict__.update(extra)


def patch_optimizer_step(accelerated_optimizer: AcceleratedOptimizer, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return `method`, noting on `accelerated_optimizer` that it was called."""

    def patched_step(*args: Any, **kwargs: Any) -> Any:
        accelerated_optimizer._accelerate_step_called = True
        return method(*args, **kwargs)

    return patched_step


def place_state(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Move state tensors in place: next to their parameter where that is already on such a device, else to `device`.

    Step counts stay where the optimizer wants them: on the CPU, unless it is fused or capturable.
    """
    for group in optimizer.param_groups:
        counts_there = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            target = parameter.device if parameter.device.type == device.type else device
            state = optimizer.state.get(parameter, {})
            for name in [name for name in state if name != "step" or counts_there]:
                state[name] = move_to_device(state[name], target)


def _stepping_through(scaler: Any) -> Precision:
    device = torch.device("cpu")
    return Precision(device) if scaler is None else Scaled(device, scaler=scaler)


def _takes_set_to_none(optimizer: torch.optim.Optimizer) -> bool:
    return "set_to_none" in inspect.signature(optimizer.zero_grad).parameters


def _call_if_present(optimizer: Any, name: str) -> None:
    method = getattr(optimizer, name, None)
    if callable(method):
        method()


def _no_set_to_none(optimizer: torch.optim.Optimizer, set_to_none: bool) -> str:
    return message(
        given=f"zero_grad(set_to_none={set_to_none})",
        why=f"{type(optimizer).__name__}.zero_grad has no such argument",
        allowed="zero_grad() without arguments for this optimizer",
        do="leave set_to_none out, or set gradients to None on the model: model.zero_grad(set_to_none=True)",
    )
