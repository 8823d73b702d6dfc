from __future__ import annotations

import pytest
import torch

from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import DistributedType, PrecisionType
from accelerate.state import AcceleratorState, PartialState, is_initialized, partial


@pytest.fixture(autouse=True)
def _started_by_hand(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)


def build(**given):
    return AcceleratorState(_from_accelerator=True, **given)


def four_parts(refusal):
    text = str(refusal.value)
    return all(part in text for part in ("Given:", "Why not:", "Allowed:", "What to do:"))


def test_it_is_built_by_an_accelerator_only():
    with pytest.raises(ValueError, match="before asking for its state") as refusal:
        AcceleratorState()
    assert four_parts(refusal)
    assert not is_initialized()
    assert PartialState._shared_state == {}
    build()
    assert AcceleratorState().initialized
    assert is_initialized()


def test_it_copies_what_the_partial_state_knows_and_goes_its_own_way():
    partial_state, state = PartialState(), build()
    assert (state.device, state.num_processes) == (partial_state.device, 1)
    assert state.runtime().topology is partial_state.runtime().topology
    partial_state.num_processes = 7
    assert AcceleratorState().num_processes == 1
    state.someotherthing = True
    assert AcceleratorState().someotherthing
    assert "someotherthing" not in PartialState._shared_state


def test_the_label_of_the_strategy_is_shown_on_both():
    state = build()
    state.set_distributed_type(DistributedType.FSDP)
    assert (AcceleratorState().distributed_type, PartialState().distributed_type) == (DistributedType.FSDP,) * 2
    state.distributed_type = DistributedType.NO
    assert AcceleratorState().distributed_type == DistributedType.NO


@pytest.mark.parametrize(
    ("argument", "variable", "precision"),
    [
        (None, None, "no"),
        (None, "BF16", "bf16"),
        ("fp16", "bf16", "fp16"),
        (PrecisionType.BF16, None, "bf16"),
        ("no", "bf16", "no"),
    ],
)
def test_precision_is_the_argument_then_the_environment_then_none(monkeypatch, argument, variable, precision):
    if variable is not None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", variable)
    assert build(mixed_precision=argument).mixed_precision == precision


@pytest.mark.parametrize("again", [None, "bf16", "BF16", PrecisionType.BF16])
def test_a_second_accelerator_may_ask_for_the_same_or_nothing(monkeypatch, again):
    build(mixed_precision="bf16")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert build(mixed_precision=again, cpu=True).mixed_precision == "bf16"


@pytest.mark.parametrize("other", ["fp16", "no"])
def test_a_second_accelerator_with_another_precision_is_refused(other):
    build(mixed_precision="bf16")
    with pytest.raises(ValueError, match="was built with bf16") as refusal:
        build(mixed_precision=other)
    text = str(refusal.value)
    assert four_parts(refusal)
    assert f"mixed_precision='{other}'" in text
    assert "AcceleratorState._reset_state(True)" in text
    assert "one Accelerator" in text


def on_another_device():
    PartialState()
    PartialState._shared_state["device"] = torch.device("meta")


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_the_cpu_is_refused_where_another_device_is_set(monkeypatch, how):
    on_another_device()
    if how == "environment":
        monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    with pytest.raises(ValueError, match="was built with device meta") as refusal:
        build(cpu=how == "argument")
    assert four_parts(refusal)
    assert not is_initialized()


def test_a_second_accelerator_can_not_move_to_the_cpu():
    on_another_device()
    build()
    with pytest.raises(ValueError, match=r"Accelerator\(cpu=True\)"):
        build(cpu=True)


def test_settings_of_the_process_group_are_handed_on(monkeypatch):
    asked = []
    monkeypatch.setattr(
        partial, "_facts", lambda state, cpu, settings: asked.append((cpu, settings.backend)) or {"_cpu": cpu}
    )
    build(cpu=True, backend="gloo")
    assert asked == [(True, "gloo")]


ABSENT = ("fsdp_plugin", "megatron_lm_plugin")
NONE = ("deepspeed_plugins", "torch_tp_plugin", "parallelism_config", "device_mesh", "deepspeed_plugin")


def test_plugins_of_a_mode_are_attributes_in_that_mode_only():
    state = build()
    assert [getattr(state, name, "absent") for name in ABSENT] == ["absent"] * 2
    assert [getattr(state, name) for name in NONE] == [None] * 5
    assert not state.is_fsdp2
    AcceleratorState._reset_state()

    plugin = Plugin(fsdp_version=2)
    state = build(fsdp_plugin=plugin, megatron_lm_plugin=plugin)
    assert state.fsdp_plugin is state.megatron_lm_plugin is plugin
    assert state.is_fsdp2
    plugin.fsdp_version = 1
    assert not state.is_fsdp2
    state.device_mesh = "mesh"
    assert AcceleratorState().device_mesh == "mesh"


class Plugin:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class DeepSpeed:
    def __init__(self, config):
        self.deepspeed_config = config
        self.selected = False

    def select(self, _from_accelerator_state=False):
        assert _from_accelerator_state
        self.selected = True

    def _unselect(self):
        self.selected = False


@pytest.mark.parametrize(
    ("config", "precision"),
    [({"bf16": {"enabled": True}}, "bf16"), ({"fp16": {"enabled": True}}, "fp16"), ({"fp16": {}}, "no"), ({}, "no")],
)
def test_under_deepspeed_precision_is_that_of_its_configuration(config, precision):
    state = build(deepspeed_plugin=DeepSpeed(config))
    assert state.mixed_precision == precision
    assert repr(state).endswith(f"\nMixed precision type: {precision}\nds_config: {config}\n")
    assert list(state.deepspeed_plugins) == ["default"]
    build(mixed_precision="fp8")  # its precision is not ours to compare


def test_one_of_several_deepspeed_plugins_is_selected():
    student, teacher = DeepSpeed({}), DeepSpeed({"bf16": {"enabled": True}})
    state = build(deepspeed_plugin={"student": student, "teacher": teacher})
    assert state.deepspeed_plugin is student
    state.select_deepspeed_plugin("teacher")
    assert state.deepspeed_plugin is teacher
    assert not student.selected
    assert state.get_deepspeed_plugin("student") is student
    with pytest.raises(ValueError, match="Did you mean 'teacher'") as refusal:
        state.select_deepspeed_plugin("teachr")
    assert four_parts(refusal)
    assert state.deepspeed_plugin is teacher


@pytest.mark.parametrize("method", ["get_deepspeed_plugin", "select_deepspeed_plugin"])
def test_without_deepspeed_there_is_no_plugin_to_ask_for(method):
    with pytest.raises(ValueError, match="DeepSpeed is not enabled") as refusal:
        getattr(build(), method)("student")
    assert four_parts(refusal)


def test_a_later_plugin_without_effect_is_said_once():
    build(dynamo_plugin=TorchDynamoPlugin(backend="eager"))
    build(dynamo_plugin=TorchDynamoPlugin(backend="no"))
    build(dynamo_plugin=TorchDynamoPlugin(backend="eager"))
    with pytest.warns(UserWarning, match="The dynamo_plugin of this Accelerator has no effect") as warned:
        build(dynamo_plugin=TorchDynamoPlugin(backend="inductor"))
    build(dynamo_plugin=TorchDynamoPlugin(backend="inductor"))
    assert len(warned) == 1
    assert AcceleratorState().dynamo_plugin.backend == "EAGER"


@pytest.mark.parametrize("reset", [lambda state: state._reset_state(), lambda state: AcceleratorState._reset_state()])
def test_a_reset_leaves_the_partial_state(reset):
    state = build()
    reset(state)
    assert not is_initialized()
    assert PartialState._shared_state != {}
    for name in ("device", "mixed_precision", "fsdp_plugin", "deepspeed_plugin"):
        with pytest.raises(AttributeError, match="`AcceleratorState`, which is empty"):
            getattr(state, name)
    with pytest.raises(AttributeError, match=r"^'AcceleratorState' object has no attribute 'someotherthing'$"):
        _ = state.someotherthing
    assert repr(state) == "AcceleratorState (not initialised)\n"
    assert state.fork_launched is False


@pytest.mark.parametrize("options", [{"args": (True,)}, {"kwargs": {"reset_partial_state": True}}])
def test_a_reset_of_both(options):
    state = build()
    state._reset_state(*options.get("args", ()), **options.get("kwargs", {}))
    assert AcceleratorState._shared_state == PartialState._shared_state == {}


def test_repr():
    assert repr(build(mixed_precision="bf16")) == (
        "Distributed environment: DistributedType.NO\n"
        "Num processes: 1\nProcess index: 0\nLocal process index: 0\nDevice: cpu\n"
        "\nMixed precision type: bf16\n"
    )


def test_the_process_group_is_left_through_it(monkeypatch):
    stopped = []
    monkeypatch.setattr("accelerate.state.process_state.process_group.stop", stopped.append)
    build().destroy_process_group()
    PartialState._reset_state()
    assert AcceleratorState().fork_launched is False
    assert stopped == [None]
