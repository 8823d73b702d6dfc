"""`Accelerator` in one process: what it takes, what it refuses, what it hands back."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import accelerate
from accelerate import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState
from accelerate.utils import (
    AutocastKwargs,
    DistributedType,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    ProfileKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
)


def parts():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1), DataLoader(torch.ones(4, 2), batch_size=2)


def test_prepared_objects_come_back_in_order_and_others_as_they_are():
    accelerator = Accelerator(cpu=True)
    model, optimizer, scheduler, loader = parts()
    found = accelerator.prepare(scheduler, "text", loader, None, model, optimizer)
    assert [type(each).__name__ for each in found] == [
        "AcceleratedScheduler",
        "str",
        "DataLoaderShard",
        "NoneType",
        "Linear",
        "AcceleratedOptimizer",
    ]
    assert accelerator._models == [model]
    assert accelerator._optimizers == [found[5]]
    assert accelerator._schedulers == [found[0]]
    assert accelerator._dataloaders == [found[2]]
    assert found[0].optimizers == [found[5]]


def test_one_object_comes_back_alone():
    model, *_ = parts()
    assert Accelerator(cpu=True).prepare(model) is model


def test_preparing_twice_changes_nothing():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    once = accelerator.prepare(*parts())
    twice = accelerator.prepare(*once)
    assert all(a is b for a, b in zip(once, twice, strict=True))
    assert len(accelerator._models) == len(accelerator._optimizers) == len(accelerator._schedulers) == 1


def test_overridden_prepare_methods_take_effect():
    class Mine(Accelerator):
        def prepare_model(self, model, device_placement=None, evaluation_mode=False):
            return "mine"

    model, optimizer, *_ = parts()
    assert Mine(cpu=True).prepare(model, optimizer)[0] == "mine"


def test_assigned_methods_take_effect():
    accelerator = Accelerator(cpu=True)
    accelerator.prepare_model = lambda model, **kwargs: "assigned"
    assert accelerator.prepare(nn.Linear(1, 1)) == "assigned"


def test_deepcopy_is_the_same_object():
    accelerator = Accelerator(cpu=True)
    assert copy.deepcopy(accelerator) is accelerator


def test_facts_of_one_process():
    accelerator = Accelerator(cpu=True)
    assert accelerator.distributed_type is DistributedType.NO
    assert (accelerator.num_processes, accelerator.process_index, accelerator.local_process_index) == (1, 0, 0)
    assert accelerator.is_main_process
    assert accelerator.is_local_main_process
    assert accelerator.is_last_process
    assert accelerator.should_save_model
    assert not accelerator.multi_device
    assert not accelerator.use_distributed
    assert accelerator.mixed_precision == "no"
    assert accelerator.native_amp is False
    assert accelerator.scaler is None
    assert accelerator.step == 0


BAD_ARGUMENTS = {
    "unknown precision": ({"mixed_precision": "fp12"}, ValueError, "fp12"),
    "no such argument": ({"mixed_precison": "bf16"}, TypeError, "Did you mean 'mixed_precision'"),
    "two ways to accumulate": (
        {"gradient_accumulation_steps": 2, "gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=3)},
        ValueError,
        "both say how many micro-batches",
    ),
    "no steps": ({"gradient_accumulation_steps": 0}, ValueError, "0"),
    "two ways to compile": (
        {"dynamo_backend": "eager", "dynamo_plugin": TorchDynamoPlugin(backend="eager")},
        ValueError,
        "both say how to compile",
    ),
    "a plugin as handler": (
        {"kwargs_handlers": [GradientAccumulationPlugin()]},
        ValueError,
        "a GradientAccumulationPlugin in kwargs_handlers",
    ),
    "two handlers of a kind": (
        {"kwargs_handlers": [GradScalerKwargs(), GradScalerKwargs()]},
        ValueError,
        "a second GradScalerKwargs",
    ),
    "a capability of a later version": (
        {"megatron_lm_plugin": object()},
        NotImplementedError,
        "not part of this version",
    ),
    "an unknown scheduler unit": ({"scheduler_unit": "epoch"}, ValueError, "scheduler unit 'epoch'"),
    "an old spelling against a new one": (
        {"even_batches": True, "dataloader_config": DataLoaderConfiguration(even_batches=False)},
        ValueError,
        "the two ask for different things",
    ),
}


@pytest.mark.filterwarnings("ignore:.*old spelling:FutureWarning")
@pytest.mark.parametrize(("arguments", "kind", "text"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS.keys())
def test_bad_arguments_are_refused_and_leave_no_state(arguments, kind, text):
    with pytest.raises(kind, match=text) as refused:
        Accelerator(cpu=True, **arguments)
    assert all(part in str(refused.value) for part in ("Given:", "Why not:", "Allowed:", "What to do:"))
    assert AcceleratorState._shared_state == {}


@pytest.mark.parametrize("variable", ["ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM"])
def test_a_launch_with_a_capability_of_a_later_version_is_refused(monkeypatch, variable):
    monkeypatch.setenv(variable, "true")
    with pytest.raises(NotImplementedError, match=f"Given: {variable}=true(.|\n)*docs/support.md"):
        Accelerator(cpu=True)
    assert AcceleratorState._shared_state == {}


def test_a_second_accelerator_of_another_precision_is_refused():
    Accelerator(cpu=True, mixed_precision="bf16")
    assert Accelerator(cpu=True).mixed_precision == "bf16"
    with pytest.raises(ValueError, match="fp16"):
        Accelerator(cpu=True, mixed_precision="fp16")


OLD_SPELLINGS = {
    "fp16": ({"fp16": True}, lambda a: a.mixed_precision == "fp16"),
    "split_batches": ({"split_batches": True}, lambda a: a.split_batches is True),
    "dispatch_batches": ({"dispatch_batches": False}, lambda a: a.dispatch_batches is False),
    "even_batches": ({"even_batches": False}, lambda a: a.even_batches is False),
    "use_seedable_sampler": ({"use_seedable_sampler": True}, lambda a: a.use_seedable_sampler is True),
}


@pytest.mark.parametrize(("arguments", "holds"), OLD_SPELLINGS.values(), ids=OLD_SPELLINGS.keys())
def test_old_spellings_do_what_they_say_and_name_the_new_ones(arguments, holds):
    with pytest.warns(FutureWarning, match=rf"{next(iter(arguments))}=.* is an old spelling; write "):
        assert holds(Accelerator(cpu=True, **arguments))


def test_old_spellings_join_a_given_configuration():
    with pytest.warns(FutureWarning):
        accelerator = Accelerator(
            cpu=True, split_batches=True, dataloader_config=DataLoaderConfiguration(non_blocking=True)
        )
    assert accelerator.split_batches
    assert accelerator.non_blocking


def test_use_fp16_is_an_old_spelling_of_a_fact():
    accelerator = Accelerator(cpu=True)
    with pytest.warns(FutureWarning, match="mixed_precision"):
        assert accelerator.use_fp16 is False


def test_autocast_takes_its_old_keyword():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    with pytest.warns(FutureWarning, match="AutocastKwargs"):
        context = accelerator.autocast(cache_enabled=False)
    with context:
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with pytest.raises(TypeError, match="it has no such argument"):
        accelerator.autocast(enabled=False)


def test_environment_gives_what_no_argument_gives(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")
    accelerator = Accelerator(cpu=True)
    assert accelerator.mixed_precision == "bf16"
    assert accelerator.gradient_accumulation_steps == 3


def test_an_argument_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    assert accelerator.mixed_precision == "bf16"
    assert accelerator.gradient_accumulation_steps == 2


def test_handlers_are_stored_by_their_kind():
    ddp, autocast = DistributedDataParallelKwargs(), AutocastKwargs(enabled=False)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", kwargs_handlers=[ddp, autocast])
    assert accelerator.ddp_handler is ddp
    assert accelerator.autocast_handler is autocast
    assert accelerator.init_handler is None


def test_autocast_follows_native_amp():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    accelerator.native_amp = False
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    model = accelerator.prepare(nn.Linear(2, 2))
    assert not hasattr(model, "_original_forward")


@pytest.mark.parametrize(("keep", "dtype"), [(False, torch.float32), (True, torch.bfloat16)])
def test_outputs_are_fp32_unless_told_otherwise(keep, dtype):
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", keep_output_dtype=keep)
    assert accelerator.prepare(nn.Linear(2, 2))(torch.ones(1, 2)).dtype == dtype


def test_backward_divides_by_the_accumulation_steps():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    weight = nn.Parameter(torch.ones(1))
    accelerator.backward((weight * 8).sum())
    assert weight.grad.item() == 2


def test_backward_of_many_values_is_refused():
    accelerator = Accelerator(cpu=True)
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(RuntimeError, match=r"a loss of shape \(2,\)"):
        accelerator.backward(weight * 1)
    accelerator.backward(weight * 1, gradient=torch.ones(2))
    assert weight.grad.tolist() == [1, 1]


def test_clipping_by_norm_and_value():
    accelerator = Accelerator(cpu=True)
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert accelerator.clip_grad_norm_([weight], 1.0).item() == pytest.approx(5.0)
    assert weight.grad.norm().item() == pytest.approx(1.0)
    accelerator.clip_grad_value_(weight, 0.1)
    assert weight.grad.tolist() == pytest.approx([0.1, 0.1])


def test_a_scheduler_without_its_optimizer_is_refused():
    *_, scheduler, _ = parts()
    with pytest.raises(ValueError, match="whose SGD is not prepared"):
        Accelerator(cpu=True).prepare(scheduler)
    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
    assert isinstance(accelerator.prepare(scheduler), AcceleratedScheduler)


def test_accumulation_steps_can_be_changed():
    accelerator = Accelerator(cpu=True)
    accelerator.gradient_accumulation_steps = 5
    assert accelerator.gradient_accumulation_steps == accelerator.gradient_state.num_steps == 5


def test_the_plugin_is_read_live():
    plugin = GradientAccumulationPlugin(num_steps=2)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    assert accelerator.gradient_accumulation_steps == 2


def test_free_memory_forgets_everything():
    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(*parts())
    accelerator.step = 3
    assert accelerator.free_memory(*prepared) == [None] * 4
    assert accelerator._models == accelerator._optimizers == accelerator._schedulers == accelerator._dataloaders == []
    assert accelerator.step == 0
    assert accelerator.clear() == []


def test_the_trigger_is_seen_once():
    accelerator = Accelerator(cpu=True)
    assert not accelerator.check_trigger()
    accelerator.set_trigger()
    assert accelerator.check_trigger()
    assert not accelerator.check_trigger()


def test_collectives_of_one_process_return_what_they_get():
    accelerator = Accelerator(cpu=True)
    data = {"a": torch.ones(2), "b": [torch.zeros(1)]}
    assert accelerator.gather(data) is data
    assert accelerator.pad_across_processes(data) is data
    assert accelerator.reduce(data)["a"].tolist() == [1, 1]
    assert accelerator.gather_for_metrics(["x"]) == ["x"]


def test_saving_writes_safetensors_or_torch_files(tmp_path):
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(1, 1))
    state = accelerator.get_state_dict(model)
    accelerator.save(state, tmp_path / "model.safetensors", safe_serialization=True)
    accelerator.save(state, tmp_path / "model.bin")
    from safetensors.torch import load_file

    assert torch.equal(load_file(tmp_path / "model.safetensors")["weight"], model.weight)
    assert torch.equal(torch.load(tmp_path / "model.bin")["weight"], model.weight)


def test_registering_needs_the_two_methods():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    accelerator.register_for_checkpointing(model)
    assert accelerator._custom_objects == [model]
    with pytest.raises(ValueError, match="at position 0: 3"):
        accelerator.register_for_checkpointing(3)


def test_profile_writes_a_trace_where_it_is_told(tmp_path):
    accelerator = Accelerator(cpu=True, kwargs_handlers=[ProfileKwargs(output_trace_dir=str(tmp_path / "traces"))])
    with accelerator.profile() as profiler:
        torch.ones(2).sum()
    assert profiler.key_averages()
    assert (tmp_path / "traces" / "profile_0.json").exists()


def test_project_directories():
    accelerator = Accelerator(cpu=True, project_dir="here")
    assert accelerator.project_dir == accelerator.logging_dir == "here"
    accelerator = Accelerator(
        cpu=True, project_config=ProjectConfiguration(project_dir="a", logging_dir="b", iteration=2)
    )
    assert (accelerator.project_dir, accelerator.logging_dir, accelerator.save_iteration) == ("a", "b", 2)


def test_evaluation_mode_and_device_placement_can_be_chosen():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1, device="meta")
    assert accelerator.prepare_model(model, device_placement=False, evaluation_mode=True).weight.device.type == "meta"


def test_models_spread_over_devices_are_left_where_they_are():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    model.hf_device_map = {"a": 0, "b": "cpu"}
    assert accelerator.verify_device_map(model)
    assert accelerator.prepare(model) is model
    assert not accelerator.verify_device_map(nn.Linear(1, 1))


def test_compiled_models_train_and_unwrap():
    accelerator = Accelerator(cpu=True, dynamo_backend="eager")
    model, optimizer = nn.Linear(2, 1), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled, optimizer = accelerator.prepare(model, optimizer)
    before = model.weight.clone()
    accelerator.backward(compiled(torch.ones(1, 2)).sum())
    optimizer.step()
    assert not torch.equal(before, model.weight)
    assert accelerator.unwrap_model(compiled, keep_torch_compile=False) is model
    assert sorted(accelerator.get_state_dict(compiled)) == ["bias", "weight"]


def test_unwrapped_mixed_precision_model_pickles():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = accelerator.prepare(nn.Linear(2, 2))
    bare = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    assert pickle.loads(pickle.dumps(bare))(torch.ones(1, 2)).dtype == torch.float32


def test_a_pickled_copy_of_a_prepared_model_can_be_prepared_again():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", keep_output_dtype=True)
    prepared = accelerator.prepare(nn.Linear(2, 2))
    assert prepared._is_accelerate_prepared
    assert copy.deepcopy(prepared)._is_accelerate_prepared
    loaded = pickle.loads(pickle.dumps(prepared))
    assert loaded(torch.ones(1, 2)).dtype == torch.float32
    assert accelerator.prepare(loaded)(torch.ones(1, 2)).dtype == torch.bfloat16


def test_fp16_trains_on_cpu_and_counts_skipped_updates():
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model, optimizer, scheduler, _ = parts()
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    rate = scheduler.get_last_lr()
    accelerator.backward(model(torch.ones(1, 2)).sum() * float("inf"))
    optimizer.step()
    scheduler.step()
    assert accelerator.optimizer_step_was_skipped
    assert scheduler.get_last_lr() == rate
    optimizer.zero_grad()
    accelerator.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    scheduler.step()
    assert not accelerator.optimizer_step_was_skipped
    assert scheduler.get_last_lr() != rate


def test_public_names_resolve_and_are_listed():
    assert accelerate.Accelerator is Accelerator
    assert "Accelerator" in dir(accelerate)
    with pytest.raises(AttributeError, match="no attribute 'Acelerator'"):
        _ = accelerate.Acelerator


def test_the_optimizer_is_an_optimizer():
    accelerator = Accelerator(cpu=True)
    _, optimizer, *_ = accelerator.prepare(*parts())
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert isinstance(optimizer, AcceleratedOptimizer)


def test_nothing_warns_in_an_ordinary_run():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator = Accelerator(cpu=True)
        model, optimizer, scheduler, loader = accelerator.prepare(*parts())
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).sum())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    assert [str(each.message) for each in caught] == []
