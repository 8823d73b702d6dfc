"""The backward pass of a pipeline's loss: parameters take over gradients that are there already."""

from __future__ import annotations

import pytest
import torch

from accelerate.strategies.axes.loss import Release


def released(parameter: torch.nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
    """Return a loss of 3 whose backward pass gives `parameter` half of `gradient`."""
    release: torch.nn.Module = Release([parameter])
    found: torch.Tensor = release(torch.tensor(3.0), [gradient], torch.tensor(0.5))
    return found


def test_gradients_are_scaled_as_the_loss_is() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    (released(parameter, torch.tensor([2.0, 4.0])) / 2).backward()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [0.5, 1.0]
    released(parameter, torch.tensor([2.0, 4.0])).backward()
    assert parameter.grad.tolist() == [1.5, 3.0]


def test_a_parameter_takes_its_gradient_over_without_a_copy() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    gradient = torch.ones(2)
    place = gradient.data_ptr()
    loss = released(parameter, gradient)
    del gradient
    loss.backward()
    assert parameter.grad is not None
    assert parameter.grad.data_ptr() == place


def test_gradients_are_handed_out_once() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    loss = released(parameter, torch.ones(2))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="handed out already"):
        loss.backward()
