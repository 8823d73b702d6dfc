"""Unwrapping, over every order of wrappers. The bare model must come back, and what is in use must stay as it was."""

from __future__ import annotations

import functools
import itertools
import pickle
import sys
import types

import pytest
import torch
import torch.distributed as dist

from accelerate.precision.select import select_precision
from accelerate.strategies.compile import compile_regions, has_compiled_regions, is_compiled_module
from accelerate.strategies.unwrap import extract_model_from_parallel, share

INPUT = torch.ones(2, 3)
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.layer(input)


class Net(torch.nn.Module):
    """Two blocks in a list and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(3, 3)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            input = layer(input)
        return self.head(input)


NAMES = list(Net().state_dict())


@pytest.fixture(scope="module", autouse=True)
def group():
    """A process group of this process alone, for DDP."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def precise(model: torch.nn.Module) -> torch.nn.Module:
    return select_precision("bf16", torch.device("cpu")).prepare_model(model)


def hooked(model: torch.nn.Module) -> torch.nn.Module:
    """Put a forward around that of the model, the way hooks do."""
    model._old_forward = model.forward
    model.forward = functools.update_wrapper(functools.partial(_hook_forward, model), model._old_forward)
    return model


def _hook_forward(module: torch.nn.Module, *args):
    return module._old_forward(*args)


WRAPPERS = {
    "precise": precise,
    "hooked": hooked,
    "ddp": torch.nn.parallel.DistributedDataParallel,
    "dp": torch.nn.DataParallel,
    "compiled": functools.partial(torch.compile, backend="eager"),
    "regions": functools.partial(compile_regions, backend="eager"),
}
OUTER = ("ddp", "dp", "compiled")


def wrapped(model: torch.nn.Module, names: tuple[str, ...]) -> torch.nn.Module:
    """Return `model` in the wrappers of these names, the innermost first."""
    return functools.reduce(lambda inner, name: WRAPPERS[name](inner), names, model)


ORDERS = [
    order
    for length in range(4)
    for order in itertools.permutations(WRAPPERS, length)
    # A hook or a precision around a wrapper of distributed training is not something that a preparation does.
    if not any(
        name in ("precise", "hooked", "regions") and OUTER_BEFORE & set(order[:place])
        for OUTER_BEFORE in [set(OUTER)]
        for place, name in enumerate(order)
    )
    if not {"ddp", "dp"} <= set(order)
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_the_bare_model_comes_back_and_pickles(order):
    model = Net()
    expected = model(INPUT)
    outermost = wrapped(model, order)
    bare = extract_model_from_parallel(outermost, keep_fp32_wrapper=False, keep_torch_compile=False)
    assert type(bare) is Net
    assert list(bare.state_dict()) == NAMES
    assert all(map(torch.Tensor.is_set_to, bare.parameters(), model.parameters()))
    assert not has_compiled_regions(bare)
    assert "_original_forward" not in bare.__dict__
    for one in (bare, pickle.loads(pickle.dumps(bare))):
        assert torch.equal(one(INPUT), expected)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_what_is_in_use_stays_as_it_was(order):
    outermost = wrapped(Net(), order)
    before = outermost(INPUT)
    facts = [(type(module), list(module.__dict__)) for module in outermost.modules()]
    for keep_precision, keep_compile in itertools.product([True, False], repeat=2):
        extract_model_from_parallel(outermost, keep_precision, keep_compile)
    assert [(type(module), list(module.__dict__)) for module in outermost.modules()] == facts
    assert torch.equal(outermost(INPUT), before)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_by_default_precision_and_compilation_are_kept(order):
    model = Net()
    outermost = wrapped(model, order)
    kept = extract_model_from_parallel(outermost)
    assert is_compiled_module(kept) is ("compiled" in order)
    assert (kept._orig_mod if "compiled" in order else kept) is model
    assert has_compiled_regions(model) is ("regions" in order)
    assert torch.equal(kept(INPUT), outermost(INPUT))
    pickle.dumps(kept)


def test_a_compiled_wrapper_that_is_already_right_is_the_result():
    inner = torch.compile(Net(), backend="eager")
    assert extract_model_from_parallel(torch.nn.DataParallel(inner)) is inner
    assert extract_model_from_parallel(inner) is inner


def test_precision_is_taken_off_below_a_compiled_wrapper_that_is_kept():
    model = precise(Net())
    compiled = torch.compile(model, backend="eager")
    bare = extract_model_from_parallel(compiled, keep_fp32_wrapper=False)
    assert is_compiled_module(bare)
    with torch.no_grad():
        assert torch.equal(bare(INPUT), Net.forward(model, INPUT))


def test_parts_that_a_person_compiled_lose_their_wrapper_only_when_asked():
    model = Net()
    model.head = torch.compile(model.head, backend="eager")
    model.layers[1] = torch.compile(model.layers[1], backend="eager")
    assert extract_model_from_parallel(model) is model
    bare = extract_model_from_parallel(model, keep_torch_compile=False)
    assert list(bare.state_dict()) == NAMES
    assert is_compiled_module(model.head)
    assert bare.layers[0] is model.layers[0]
    assert torch.equal(bare(INPUT), model(INPUT))


def test_a_module_that_is_used_twice_stays_one():
    model = Net()
    model.layers[1] = model.layers[0] = torch.compile(model.layers[0], backend="eager")
    bare = extract_model_from_parallel(model, keep_torch_compile=False)
    assert bare.layers[0] is bare.layers[1]


@pytest.mark.parametrize("recursive", [True, False])
def test_wrappers_inside_the_model_are_taken_off_when_asked(recursive):
    model = Net()
    inner = model.layers[0]
    model.layers[0] = torch.nn.DataParallel(inner)
    bare = extract_model_from_parallel(torch.nn.DataParallel(model), recursive=recursive)
    assert (bare.layers[0] is inner) is recursive
    assert isinstance(model.layers[0], torch.nn.DataParallel)
    assert (bare is model) is not recursive


def test_a_deepspeed_engine_is_a_wrapper(monkeypatch):
    class DeepSpeedEngine(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    monkeypatch.setitem(sys.modules, "deepspeed", types.SimpleNamespace(DeepSpeedEngine=DeepSpeedEngine))
    model = Net()
    assert extract_model_from_parallel(DeepSpeedEngine(model)) is model


@pytest.mark.parametrize("thing", [None, "text", len])
def test_what_is_no_model_comes_back(thing):
    assert extract_model_from_parallel(thing, keep_fp32_wrapper=False, keep_torch_compile=False) is thing


def test_a_shared_copy_lives_on_the_same_tensors_and_its_own_methods():
    model = Net()
    model.register_buffer("count", torch.zeros(1))
    model.bound = model.forward
    copy = share(model)
    assert copy.bound.__self__ is copy
    assert copy.count is model.count
    copy.extra = torch.nn.Linear(1, 1)
    assert not hasattr(model, "extra")
    model.head.weight = torch.nn.Parameter(torch.zeros(3, 3))
    assert copy.head.weight is model.head.weight


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.parametrize("recursive", [True, False])
def test_fsdp_is_a_wrapper_inside_and_outside(recursive):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = Net()
    inner = model.layers[0]
    cpu = torch.device("cpu")
    model.layers[0] = FullyShardedDataParallel(inner, device_id=cpu)
    bare = extract_model_from_parallel(FullyShardedDataParallel(model, device_id=cpu), recursive=recursive)
    assert (bare.layers[0] is inner) is recursive
    assert (bare is model) is not recursive
