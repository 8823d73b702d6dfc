"""What several processes do together besides training: flags, joins, hooks, debug mode, unwrapping."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from .recipes import build_model, data, optimizer_for


def trigger_on(rank):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    if accelerator.process_index == rank:
        accelerator.set_trigger()
    return [accelerator.check_trigger(), accelerator.check_trigger()]


def test_a_trigger_raised_by_one_process_is_seen_by_all_once(pair):
    assert pair.run(trigger_on, 1) == [[True, False]] * 2


def facts():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    return (
        str(accelerator.distributed_type),
        accelerator.num_processes,
        accelerator.process_index,
        accelerator.is_main_process,
        accelerator.is_last_process,
        accelerator.multi_device,
        accelerator.use_distributed,
    )


def test_facts_of_two_processes(pair):
    first, last = pair.run(facts)
    assert first == ("DistributedType.MULTI_CPU", 2, 0, True, False, False, True)
    assert last == ("DistributedType.MULTI_CPU", 2, 1, False, True, False, True)


def uneven():
    """Train on three batches shared out unevenly, joined; return steps, later steps and weights."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = build_model("plain")
    optimizer = optimizer_for(model)
    loader = DataLoader(data(3), batch_size=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for _, x, _, _ in loader:
            accelerator.backward(model(x).mean())
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    later = sum(1 for _ in loader)
    return steps, later, [p.detach().clone() for p in model.parameters()]


def test_ranks_with_fewer_batches_are_joined_by_the_others(pair):
    (steps_0, later_0, weights_0), (steps_1, later_1, weights_1) = pair.run(uneven)
    assert (steps_0, steps_1) == (2, 1)
    assert (later_0, later_1) == (2, 2)
    for a, b in zip(weights_0, weights_1, strict=True):
        assert torch.equal(a, b)


def hooked(hook, wrapper):
    from accelerate import Accelerator, DistributedDataParallelKwargs

    kwargs = DistributedDataParallelKwargs(comm_hook=hook, comm_wrapper=wrapper)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[kwargs])
    model = build_model("plain")
    model = accelerator.prepare(model)
    torch.manual_seed(accelerator.process_index)
    accelerator.backward(model(torch.randn(4, 4)).mean())
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize(("hook", "wrapper"), [("fp16", "no"), ("power_sgd", "no"), ("power_sgd", "fp16")])
def test_communication_hooks_average_gradients_in_their_precision(pair, hook, wrapper):
    exact = pair.run(hooked, "no", "no")
    first, second = pair.run(hooked, hook, wrapper)
    for a, b, expected in zip(first, second, exact[0], strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected, atol=1e-2, rtol=1e-2)


def gather_mismatch():
    from accelerate import Accelerator
    from accelerate.utils.operations import DistributedOperationException, gather

    os.environ["ACCELERATE_DEBUG_MODE"] = "1"
    try:
        accelerator = Accelerator(cpu=True)
        accelerator.gather(torch.ones(2))
        try:
            gather({"loss": torch.ones(2 + accelerator.process_index)})
        except DistributedOperationException as error:
            return str(error)
    finally:
        del os.environ["ACCELERATE_DEBUG_MODE"]
    return None


def test_debug_mode_names_operation_shapes_and_call_site_on_every_rank(pair):
    for text in pair.run(gather_mismatch):
        assert "gather" in text
        assert "(2,)" in text or "[2]" in text
        assert "(3,)" in text or "[3]" in text
        assert "test_processes.py" in text


def frozen_only():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(build_model("plain").requires_grad_(False))
    return type(model).__name__


def test_models_with_nothing_to_train_are_not_wrapped(pair):
    assert pair.run(frozen_only) == ["Sequential"] * 2


def unwrapped(dynamo_backend, mixed_precision):
    """Prepare a model in every wrapper at once; return its type, the bare one's, and an output of a pickled copy."""
    from accelerate import Accelerator
    from accelerate.utils import TorchDynamoPlugin

    accelerator = Accelerator(
        cpu=True, mixed_precision=mixed_precision, dynamo_plugin=TorchDynamoPlugin(backend=dynamo_backend)
    )
    model = build_model("plain")
    expected = model(torch.ones(1, 4))
    prepared = accelerator.prepare(model)
    bare = accelerator.unwrap_model(prepared, keep_fp32_wrapper=False, keep_torch_compile=False)
    copy = pickle.loads(pickle.dumps(bare))
    return type(prepared).__name__, type(bare).__name__, torch.equal(copy(torch.ones(1, 4)), expected)


@pytest.mark.parametrize("mixed_precision", ["no", "bf16"])
@pytest.mark.parametrize("dynamo_backend", ["no", "eager"])
def test_unwrapping_gives_the_bare_model_which_pickles(pair, dynamo_backend, mixed_precision):
    outer = "DistributedDataParallel" if dynamo_backend == "no" else "OptimizedModule"
    assert pair.run(unwrapped, dynamo_backend, mixed_precision) == [(outer, "Sequential", True)] * 2


def spread_model():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    model.hf_device_map = {"a": 0, "b": "cpu"}
    try:
        accelerator.prepare(model)
    except ValueError as error:
        refused = str(error)
    os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "TRUE"
    try:
        bypassed = Accelerator(cpu=True).prepare(model)
    finally:
        del os.environ["ACCELERATE_BYPASS_DEVICE_MAP"]
    return refused, type(bypassed).__name__


def test_models_spread_over_devices_are_refused_unless_told_otherwise(pair):
    for refused, bypassed in pair.run(spread_model):
        assert "spread over several devices" in refused
        assert bypassed == "DistributedDataParallel"


def late_sync():
    """Run a forward under no_sync and its backward with synchronisation; return whether gradients agree."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(build_model("plain"))
    x = torch.full((2, 4), float(accelerator.process_index + 1))
    with accelerator.no_sync(model):
        loss = model(x).mean()
    with accelerator.trigger_sync_in_backward(model):
        accelerator.backward(loss)
    return model.module[0].weight.grad.clone()


def test_gradients_can_be_synchronised_after_a_forward_without(pair):
    first, second = pair.run(late_sync)
    assert torch.equal(first, second)


def ordered(folder):
    """Let the main process write a file first; return whether each process found it inside the block."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    with accelerator.main_process_first():
        if accelerator.is_main_process:
            (folder / "made").touch()
        return (folder / "made").exists()


def test_the_main_process_is_through_before_the_others_begin(pair, tmp_path):
    assert pair.run(ordered, tmp_path) == [True, True]


def scheduled(unit, split_batches):
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True, scheduler_unit=unit, dataloader_config=DataLoaderConfiguration(split_batches=split_batches)
    )
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    optimizer.step()
    scheduler.step()
    return scheduler.get_last_lr()


@pytest.mark.parametrize(
    ("unit", "split_batches", "rate"), [("process", False, 0.25), ("process", True, 0.5), ("update", False, 0.5)]
)
def test_a_scheduler_moves_one_step_per_process_or_per_update(pair, unit, split_batches, rate):
    assert pair.run(scheduled, unit, split_batches) == [[rate]] * 2
