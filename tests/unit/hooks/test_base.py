"""Putting hooks on modules and taking them off: what runs when, and what published code finds on the module."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch

from accelerate import hooks
from accelerate.hooks import ModelHook, SequentialHook, add_hook_to_module, remove_hook_from_module


class Recorded(ModelHook):
    """Writes down what is called, and adds one to inputs and outputs."""

    def __init__(self, name: str, record: list[str]) -> None:
        self.name = name
        self.record = record

    def init_hook(self, module):
        self.record.append(f"init {self.name}")
        return module

    def pre_forward(self, module, *args, **kwargs):
        self.record.append(f"pre {self.name}")
        return tuple(each + 1 for each in args), kwargs

    def post_forward(self, module, output):
        self.record.append(f"post {self.name}")
        return output + 1

    def forward_failed(self, module):
        self.record.append(f"failed {self.name}")

    def detach_hook(self, module):
        self.record.append(f"detach {self.name}")
        return module


class Double(torch.nn.Module):
    """Doubles its input, or fails."""

    def forward(self, value: torch.Tensor, fail: bool = False) -> torch.Tensor:
        """Double."""
        if fail:
            raise ValueError("asked to")
        return value * 2


def test_a_hook_changes_inputs_and_outputs_and_is_found_on_the_module() -> None:
    record: list[str] = []
    module, hook = Double(), Recorded("a", record)
    assert add_hook_to_module(module, hook) is module
    assert module(torch.tensor(1)) == 5
    assert record == ["init a", "pre a", "post a"]
    assert module.__dict__["_hf_hook"] is hook
    assert module._old_forward(torch.tensor(1)) == 2


def test_the_forward_still_looks_like_itself() -> None:
    module = add_hook_to_module(Double(), ModelHook())
    assert list(inspect.signature(module.forward).parameters) == ["value", "fail"]
    assert module.forward.__doc__ == "Double."
    assert module.forward.__wrapped__ is Double.forward


def test_a_forward_that_is_no_method_is_hooked_too() -> None:
    module = Double()
    module.forward = lambda value: value + 10
    add_hook_to_module(module, Recorded("a", []))
    assert module(torch.tensor(1)) == 13
    assert list(inspect.signature(module.forward).parameters) == ["value"]


def test_removing_a_hook_leaves_the_module_as_it_was() -> None:
    record: list[str] = []
    module = add_hook_to_module(Double(), Recorded("a", record))
    module.__dict__["to"] = "what dispatching sets"
    assert remove_hook_from_module(module) is module
    assert record == ["init a", "detach a"]
    assert not {"_hf_hook", "_old_forward", "to"} & set(module.__dict__)
    assert module(torch.tensor(1)) == 2
    assert remove_hook_from_module(module) is module


def test_hooks_are_removed_from_everything_inside() -> None:
    record: list[str] = []
    model = torch.nn.Sequential(Double(), torch.nn.Sequential(Double()))
    for name, module in model.named_modules():
        add_hook_to_module(module, Recorded(name, record))
    record.clear()
    hooks.remove_hook_from_submodules(model)
    assert record == ["detach ", "detach 0", "detach 1", "detach 1.0"]
    assert model(torch.tensor(1)) == 4


def test_appended_hooks_run_in_order_and_the_old_one_comes_first() -> None:
    record: list[str] = []
    first, second = Recorded("a", record), Recorded("b", record)
    module = add_hook_to_module(Double(), first)
    add_hook_to_module(module, second, append=True)
    assert module._hf_hook.hooks == (first, second)
    record.clear()
    assert module(torch.tensor(1)) == 8
    assert record == ["pre a", "pre b", "post a", "post b"]
    remove_hook_from_module(module)
    assert record[4:] == ["detach a", "detach b"]


def test_a_hook_that_is_replaced_is_not_asked_to_clean_up() -> None:
    record: list[str] = []
    module = add_hook_to_module(Double(), Recorded("a", record))
    original = module._old_forward
    add_hook_to_module(module, Recorded("b", record))
    assert record == ["init a", "init b"]
    assert module._old_forward == original
    assert module(torch.tensor(1)) == 5


@pytest.mark.parametrize("sequential", [False, True])
def test_a_forward_that_fails_lets_hooks_clean_up(sequential: bool) -> None:
    record: list[str] = []
    hook = Recorded("a", record)
    module = add_hook_to_module(Double(), SequentialHook(hook, Recorded("b", record)) if sequential else hook)
    record.clear()
    with pytest.raises(ValueError, match="asked to"):
        module(torch.tensor(1), fail=True)
    assert record == (["pre a", "pre b", "failed a", "failed b"] if sequential else ["pre a", "failed a"])


def test_no_grad_is_that_of_the_hook_on_the_module() -> None:
    hook = ModelHook()
    hook.no_grad = True
    given = torch.ones(1, requires_grad=True)
    assert not add_hook_to_module(Double(), hook)(given).requires_grad
    assert add_hook_to_module(Double(), SequentialHook(hook))(given).requires_grad


def test_a_traced_module_is_hooked_on_its_class() -> None:
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    add_hook_to_module(traced, Recorded("a", []))
    assert "forward" not in traced.__dict__
    assert traced(torch.tensor(1.0)) == 3
    remove_hook_from_module(traced)
    assert traced(torch.tensor(1.0)) == 1


def test_a_copy_runs_its_own_hook() -> None:
    module = add_hook_to_module(torch.nn.Linear(1, 1), Recorded("a", []))
    twin = copy.deepcopy(module)
    assert twin._hf_hook is not module._hf_hook
    assert twin._old_forward.__self__ is twin
    with torch.no_grad():
        twin.weight.zero_()
        twin.bias.zero_()
    assert twin(torch.ones(1)) == 1


def test_pickling_a_hooked_module_does_not_forget_the_hook_in_silence() -> None:
    module = add_hook_to_module(torch.nn.ReLU(), ModelHook())
    with pytest.raises(AttributeError, match="hooked_forward"):
        pickle.loads(pickle.dumps(module))


def test_a_wrapper_that_shows_the_hook_of_what_it_wraps_has_none_itself() -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str):
            return getattr(super().__getattr__("inner"), name) if name != "inner" else super().__getattr__(name)

    wrapper = Wrapper(add_hook_to_module(Double(), ModelHook()))
    assert wrapper._hf_hook is wrapper.inner._hf_hook
    remove_hook_from_module(wrapper)
    assert "_hf_hook" in wrapper.inner.__dict__


def test_attributes_that_dispatching_adds_are_listed() -> None:
    assert hooks._accelerate_added_attributes == ["to", "cuda", "npu", "xpu", "mlu", "sdaa", "musa"]
