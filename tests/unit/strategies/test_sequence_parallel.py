"""Sequence parallel without processes: which attention computes, which models are taken, and what DeepSpeed is told."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.base.messages import forget_warnings
from accelerate.config.parallelism import ParallelismConfig
from accelerate.config.sequence_parallel import DeepSpeedSequenceParallelConfig
from accelerate.data_loader.iteration import Pass
from accelerate.data_loader.turns import TurnLoader, TurnPass
from accelerate.state.gradient import GradientState
from accelerate.strategies.axes.base import Place
from accelerate.strategies.axes.sequence import Sequences
from accelerate.strategies.axes.ulysses import DividedAttention, Groups, refuse_missing, start_deepspeed
from accelerate.strategies.bundle import Bundle
from accelerate.strategies.select import _divides
from tests.unit.deepspeed_double import install

GROUP: Any = SimpleNamespace(size=lambda: 2, rank=lambda: 1)


@pytest.fixture
def deepspeed(monkeypatch):
    kept = install(monkeypatch)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    transformers, modeling = ModuleType("transformers"), ModuleType("transformers.modeling_utils")
    modeling.ALL_ATTENTION_FUNCTIONS = {"sdpa": whole, "flash_attention_2": whole}
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", modeling)
    kept.attentions = modeling.ALL_ATTENTION_FUNCTIONS
    return kept


def whole(module, query, key, value, mask, **kwargs):
    return "whole", mask, kwargs


class Attention(nn.Module):
    """What transformers' attention modules have."""

    is_causal = True
    num_key_value_groups = 2


class Model(nn.Module):
    """A model with a configuration like those of transformers."""

    _supports_attention_backend = True

    def __init__(self, attention="sdpa", **facts):
        super().__init__()
        settings = {"num_attention_heads": 4, "num_key_value_heads": 2, **facts}
        self.config = SimpleNamespace(_attn_implementation=attention, **settings)
        self.config.get_text_config = lambda: self.config
        self.attention = Attention()


def axis_of(deepspeed, tp_size=1, size=2, **settings):
    settings = DeepSpeedSequenceParallelConfig(**settings)
    mesh = SimpleNamespace(size=lambda: size, get_group=lambda: GROUP)
    layout = SimpleNamespace(tp_size=tp_size)
    runtime = SimpleNamespace(gradient_state=GradientState())
    return Sequences(Place(mesh, layout, settings, runtime))


def heads(rows=1, heads=4, length=3, size=8):
    return torch.zeros(rows, heads, length, size)


def call(attention, module, mask=None, **kwargs):
    return attention(module, heads(), heads(heads=2), heads(heads=2), mask, **kwargs)


# --- DeepSpeed --------------------------------------------------------------------------------------------------------


def test_deepspeed_joins_the_process_groups_once_and_is_told_the_group(deepspeed):
    start_deepspeed(GROUP)
    start_deepspeed(GROUP)
    assert [each["dist_backend"] for each in deepspeed.started] == ["gloo"]
    told = deepspeed.groups.mpu
    assert (told.get_sequence_parallel_group(), told.get_sequence_parallel_world_size()) == (GROUP, 2)
    assert told.get_sequence_parallel_rank() == 1


def test_groups_of_others_are_left_alone(deepspeed):
    deepspeed.groups.mpu = others = object()
    start_deepspeed(GROUP)
    assert deepspeed.groups.mpu is others
    deepspeed.groups.mpu = Groups(GROUP)
    start_deepspeed(another := SimpleNamespace())
    assert deepspeed.groups.mpu.get_sequence_parallel_group() is another


def test_a_missing_deepspeed_is_named(monkeypatch):
    monkeypatch.setattr("accelerate.strategies.axes.ulysses.is_deepspeed_available", lambda: False)
    with pytest.raises(ImportError, match=r"pip install 'deepspeed>=0\.18\.2'"):
        refuse_missing()


def test_an_old_deepspeed_is_refused(monkeypatch):
    install(monkeypatch, version="0.17.9")
    with pytest.raises(ImportError, match=r"DeepSpeed 0\.17\.9 doesn't divide"):
        refuse_missing()


# --- models -----------------------------------------------------------------------------------------------------------

REFUSED = {
    "another library": (nn.Linear(2, 2), {}, TypeError, "models of transformers"),
    "linear attention": (
        lambda: Model(layer_types=["full_attention", "linear_attention"]),
        {},
        ValueError,
        "layers of linear_attention",
    ),
    "older names": (lambda: Model(layers_block_type=["attention", "mamba"]), {}, ValueError, "layers of mamba"),
    "no heads": (lambda: Model(num_attention_heads=None), {}, ValueError, "no attention heads"),
    "heads": (lambda: Model(num_attention_heads=3), {}, ValueError, "3 attention heads"),
    "heads of keys": (lambda: Model(num_attention_heads=12, num_key_value_heads=3), {}, ValueError, "3 of keys"),
    "heads of divided layers": (lambda: Model(), {"tp_size": 4}, ValueError, "sp_size=2 and tp_size=4"),
    "eager": (lambda: Model("eager"), {}, ValueError, "attn_implementation='sdpa'"),
    "another attention": (
        lambda: Model(),
        {"sp_attn_implementation": "flash_attention_2"},
        ValueError,
        "'sdpa' attention, and sp_attn_implementation='flash_attention_2'",
    ),
}


@pytest.mark.parametrize(("make", "facts", "kind", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_models_whose_sequences_cannot_be_divided(deepspeed, make, facts, kind, text):
    model = make if isinstance(make, nn.Module) else make()
    with pytest.raises(kind, match=text):
        axis_of(deepspeed, **facts).check(Bundle.of([model]))


def test_attention_in_both_directions_is_refused(deepspeed):
    model = Model()
    model.attention.is_causal = False
    with pytest.raises(ValueError, match="both directions"):
        axis_of(deepspeed).prepare_model(model)


def test_attention_that_cannot_be_replaced_is_refused(deepspeed):
    model = Model()
    model._supports_attention_backend = False
    with pytest.raises(ValueError, match="can't be replaced"):
        axis_of(deepspeed).check(Bundle.of([model]))


def test_a_prepared_model_is_not_asked_again(deepspeed):
    model = Model("eager")
    model._is_accelerate_prepared = True
    axis = axis_of(deepspeed)
    axis.check(Bundle.of([model]))
    assert axis.attentions == {}


@pytest.mark.parametrize(("query", "key"), [(4, 4), (4, 2), (4, 1), (2, 2), (8, 6)])
def test_heads_that_can_be_dealt_out(deepspeed, query, key):
    model = Model(num_attention_heads=query, num_key_value_heads=key)
    assert axis_of(deepspeed).prepare_model(model) is model
    assert isinstance(deepspeed.attentions["sdpa"], DividedAttention)


def test_a_fixed_length_has_to_have_equal_parts(deepspeed):
    with pytest.raises(ValueError, match="a length of 4 or 6"):
        axis_of(deepspeed, sp_seq_length=5, sp_seq_length_is_variable=False)


# --- attention --------------------------------------------------------------------------------------------------------


def test_only_models_that_were_prepared_have_divided_attention(deepspeed):
    model, other = Model(), Model()
    axis_of(deepspeed).prepare_model(model)
    attention = deepspeed.attentions["sdpa"]
    assert call(attention, model.attention, scaling=1.0) == ("divided", ("whole", None, {"scaling": 1.0}))
    mask = torch.ones(1)
    assert call(attention, other.attention, mask) == ("whole", mask, {})


def test_one_attention_serves_all_models_and_shapes(deepspeed):
    axis = axis_of(deepspeed)
    models = [axis.prepare_model(Model()) for _ in range(2)]
    attention = deepspeed.attentions["sdpa"]
    for model in models:
        call(attention, model.attention)
    attention(models[0].attention, heads(rows=3), heads(rows=3), heads(rows=3), None)
    facts = [each.facts for each in attention._shapes.values()]
    assert [(each["batch_size"], each["attn_head_count"], each["kv_head_count"]) for each in facts] == [
        (1, 4, 2),
        (3, 4, 4),
    ]
    assert {each["seq_length_is_variable"] for each in facts} == {True}
    assert {each["process_group"] is GROUP for each in facts} == {True}


def test_another_accelerator_shares_the_attention(deepspeed):
    model = axis_of(deepspeed).prepare_model(Model())
    first = deepspeed.attentions["sdpa"]
    other = axis_of(deepspeed).prepare_model(Model())
    assert deepspeed.attentions["sdpa"] is first
    assert {call(first, each.attention)[0] for each in (model, other)} == {"divided"}


def test_a_later_run_divides_once(deepspeed):
    model = axis_of(deepspeed).prepare_model(Model())
    axis_of(deepspeed, sp_seq_length=6, sp_seq_length_is_variable=False).prepare_model(model)
    attention = deepspeed.attentions["sdpa"]
    assert attention.whole is whole
    assert call(attention, model.attention) == ("divided", ("whole", None, {}))


def test_a_fixed_length_is_handed_on(deepspeed):
    model = axis_of(deepspeed, sp_seq_length=6, sp_seq_length_is_variable=False).prepare_model(Model())
    attention = deepspeed.attentions["sdpa"]
    call(attention, model.attention)
    (made,) = attention._shapes.values()
    facts = made.facts
    assert (facts["seq_length_is_variable"], facts["local_seq_length"], facts["global_seq_length"]) == (False, 3, 6)


def test_masks_of_a_part_are_left_out_and_groups_of_heads_stay(deepspeed):
    model = axis_of(deepspeed).prepare_model(Model())
    attention = deepspeed.attentions["sdpa"]
    assert call(attention, model.attention, torch.ones(1))[1][1] is None
    blocks = object()
    assert call(attention, model.attention, blocks)[1][1] is blocks
    assert model.attention.num_key_value_groups == 2


def test_a_window_that_would_need_a_mask_is_refused(deepspeed):
    axis = axis_of(deepspeed)
    plain, flash = axis.prepare_model(Model()), axis.prepare_model(Model("flash_attention_2"))
    assert call(deepspeed.attentions["sdpa"], plain.attention, sliding_window=6)[0] == "divided"
    with pytest.raises(ValueError, match="sequences of 6 tokens, and a layer that sees 5"):
        call(deepspeed.attentions["sdpa"], plain.attention, sliding_window=5)
    assert call(deepspeed.attentions["flash_attention_2"], flash.attention, sliding_window=5)[0] == "divided"


@pytest.mark.parametrize(
    ("kinds", "training", "expected"),
    [
        ((), True, "divided"),
        ((), False, "whole"),
        ((TurnPass,), True, "divided"),
        ((TurnPass,), False, "divided"),
        ((TurnPass, Pass), True, "divided"),
        ((TurnPass, Pass), False, "whole"),
        ((Pass, TurnPass), False, "divided"),
    ],
)
def test_what_is_computed_follows_the_loader(deepspeed, kinds, training, expected):
    model = axis_of(deepspeed).prepare_model(Model())
    state, loader = GradientState(), type("Loader", (), {})()
    for kind in kinds:
        this_pass = kind(loader)
        state.enter(this_pass)
        this_pass.turn = state.turn = state.turn + 1
    model.train(training)
    assert call(deepspeed.attentions["sdpa"], model.attention)[0] == expected


def test_training_on_whole_sequences_is_an_error(deepspeed):
    model = axis_of(deepspeed).prepare_model(Model())
    state, loader = GradientState(), type("Loader", (), {})()
    this_pass = Pass(loader)
    state.enter(this_pass)
    this_pass.turn = state.turn = 1
    with pytest.raises(RuntimeError, match="deepspeed_ulysses_dl_adapter"):
        call(deepspeed.attentions["sdpa"], model.attention)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SIZE", "2")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "8")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "False")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", "flash_attention_2")
    handler = ParallelismConfig().sp_handler
    assert handler == DeepSpeedSequenceParallelConfig(8, False, "flash_attention_2")


def test_defaults():
    handler = DeepSpeedSequenceParallelConfig()
    assert (handler.sp_seq_length, handler.sp_seq_length_is_variable, handler.sp_attn_implementation) == (
        None,
        True,
        None,
    )
    assert ParallelismConfig(sp_size=2).sp_handler == handler


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"sp_seq_length_is_variable": False}, "pass sp_seq_length"),
        ({"sp_attn_implementation": "eager"}, "attn_implementation='sdpa'"),
        ({"sp_seq_length": 0}, "1"),
    ],
)
def test_settings_that_are_refused(given, text):
    with pytest.raises(ValueError, match=text):
        DeepSpeedSequenceParallelConfig(**given)


def test_a_length_that_is_not_needed_says_so():
    forget_warnings()
    with pytest.warns(UserWarning, match="sp_seq_length=8 has no effect"):
        DeepSpeedSequenceParallelConfig(sp_seq_length=8)


def test_sequences_alone_leave_models_to_replicas():
    for sizes, expected in (({"sp_size": 2}, False), ({"sp_size": 2, "tp_size": 2}, True), ({"cp_size": 2}, True)):
        assert _divides(SimpleNamespace(parallelism=ParallelismConfig(**sizes))) is expected


def test_a_loader_is_divided_once(deepspeed, monkeypatch):
    monkeypatch.setattr(
        "accelerate.strategies.axes.sequence.collectives_over", lambda *_: SimpleNamespace(world_size=2)
    )
    axis = axis_of(deepspeed)
    loader = axis.prepare_data_loader(SimpleNamespace(splits_batches=False))
    assert isinstance(loader, TurnLoader)
    assert axis.prepare_data_loader(loader) is loader
