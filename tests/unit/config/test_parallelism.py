"""Sizes of axes: where they come from, which go together, and what is nearest to those that don't fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from accelerate.base.messages import forget_warnings
from accelerate.config.arguments import choose_parallelism
from accelerate.config.context_parallel import TorchContextParallelConfig
from accelerate.config.mesh_axes import AXES, nearest_sizes, products
from accelerate.config.option import option_of
from accelerate.config.parallelism import ParallelismConfig
from accelerate.config.parallelism_settings import ParallelismSettings
from accelerate.config.pipeline_parallel import PipelineParallelConfig
from accelerate.config.schedules import SCHEDULES
from accelerate.config.tensor_parallel import TorchTensorParallelConfig, TorchTensorParallelPlugin


def sizes(**given):
    return {axis: given.get(axis, 1) for axis in AXES}


@pytest.mark.parametrize(
    ("given", "processes", "first"),
    [
        ({"dp_shard": 3}, 2, "dp_shard_size=2"),
        ({"dp_shard": 4, "tp": 3}, 8, "dp_shard_size=4 x tp_size=2"),
        ({"tp": 8}, 4, "tp_size=4"),
        ({"dp_shard": 2, "cp": 2, "tp": 2}, 16, "dp_shard_size=2 x cp_size=2 x tp_size=4"),
        ({"dp_replicate": 2, "dp_shard": 2}, 1, "sizes of 1"),
        ({"pp": 2, "dp_shard": 7}, 16, "pp_size=2 x dp_shard_size=8"),
    ],
)
def test_nearest_sizes(given, processes, first):
    found = nearest_sizes(sizes(**given), processes)
    assert found[0] == first
    assert 1 <= len(found) <= 3


def test_every_product_is_found_once():
    found = list(products(12, 3))
    assert len(found) == len(set(found)) == 18
    assert all(one * two * three == 12 for one, two, three in found)


def validate(config, processes, fsdp=False):
    state = SimpleNamespace(fsdp_plugin=object()) if fsdp else SimpleNamespace()
    config._validate_accelerator(SimpleNamespace(num_processes=processes, state=state))


def test_a_product_that_does_not_fit_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="dp_shard_size=4 x tp_size=2") as error:
        validate(ParallelismConfig(dp_shard_size=4, tp_size=3), 8, fsdp=True)
    assert "--num_processes 12" in str(error.value)


@pytest.mark.parametrize(("fsdp", "axis"), [(True, "dp_shard"), (False, "dp_replicate")])
def test_sizes_of_one_are_found_out(fsdp, axis):
    config = ParallelismConfig()
    validate(config, 4, fsdp=fsdp)
    assert config.active_mesh_dims == [axis]


def test_attributes_that_a_script_assigns_count():
    config = ParallelismConfig()
    config.tp_size, config.dp_shard_size = 2, 4
    validate(config, 8)
    assert config._get_mesh() == (("dp_shard", "tp"), (4, 2))


def test_libraries_may_bring_their_own_sizes():
    config = ParallelismConfig()
    config._sizes = {"dp_replicate": 1, "dp_shard": 3, "tp": 1, "cp": 1, "sp": 1}
    config.dp_shard_size = 3
    assert config.active_mesh_dims == ["dp_shard"]
    assert not config.pp_enabled
    with pytest.raises(ValueError, match="dp_shard_size=4"):
        validate(config, 4, fsdp=True)


def test_the_order_of_axes():
    config = ParallelismConfig(tp_size=2, pp_size=2, dp_shard_size=2, dp_replicate_size=2, cp_size=2)
    assert config.active_mesh_dims == ["pp", "dp_replicate", "dp_shard", "cp", "tp"]
    assert config.non_dp_dim_names == ["pp", "cp", "tp"]
    assert (config.total_size, config.data_parallel_size, config.non_data_parallel_size) == (32, 4, 8)
    assert config.pp_enabled


def test_a_handler_of_an_axis_without_ranks_warns():
    forget_warnings()
    with pytest.warns(UserWarning, match="tp_handler has no effect"):
        ParallelismConfig(tp_handler=TorchTensorParallelConfig(plan={"head": "colwise"}))


def test_unknown_purposes_are_refused():
    config = ParallelismConfig()
    assert config.view("loss") is None
    with pytest.raises(ValueError, match="Did you mean 'shard'?"):
        config.view("shards")


PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}


@pytest.mark.parametrize("given", [PLAN, "layers.*.up=colwise, layers.*.down=rowwise,"])
def test_plans(given):
    declared = option_of(ParallelismSettings, "tp_plan")
    assert declared.read(given, "a test") == PLAN
    assert declared.kind.parse(declared.kind.format(PLAN)) == PLAN


@pytest.mark.parametrize("given", ["layers.*.up", 3])
def test_what_is_no_plan(given):
    with pytest.raises(ValueError, match="layers.*.q_proj=colwise"):
        option_of(ParallelismSettings, "tp_plan").read(given, "a test")


def test_a_plan_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("PARALLELISM_CONFIG_TP_PLAN", "head=colwise_gather_output")
    assert ParallelismConfig(tp_size=2).tp_handler.plan == {"head": "colwise_gather_output"}
    assert TorchTensorParallelConfig(plan=PLAN).plan == PLAN


def test_the_plugin_of_earlier_releases():
    assert choose_parallelism(None, TorchTensorParallelPlugin(tp_size=2)).tp_size == 2
    assert choose_parallelism(None, TorchTensorParallelPlugin()) is None
    with pytest.raises(ValueError, match="one of them"):
        choose_parallelism(ParallelismConfig(tp_size=4), TorchTensorParallelPlugin(tp_size=2))
    with pytest.raises(ValueError, match="from 1 on"):
        TorchTensorParallelPlugin(tp_size=0)


@pytest.mark.parametrize(
    "build",
    [
        lambda: TorchTensorParallelConfig(enable_async_tp=True),
        lambda: TorchTensorParallelPlugin(torch_device_mesh=object()),
    ],
)
def test_what_is_not_there_is_refused(build):
    with pytest.raises(NotImplementedError, match="leave it out"):
        build()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"schedule": "1f1"}, "Did you mean '1f1b'"),
        ({"schedule": "zbv_zero_bubble", "stages_per_process": 3}, "2 for zbv_zero_bubble"),
        ({"split_points": 3}, "names of modules: layers.8"),
        ({"stages_per_process": 2}, "leave stages_per_process out"),
        ({"schedule": "interleaved", "stages_per_process": 1}, "2 or more for interleaved"),
        ({"num_microbatches": 0}, "a whole number, 1 or more"),
    ],
)
def test_settings_of_pipelines_that_are_refused(given, text):
    with pytest.raises(ValueError, match=text):
        PipelineParallelConfig(**given)


def test_settings_of_axes_are_made_where_there_are_none():
    layout = ParallelismConfig(cp_size=2, pp_size=2)
    assert layout.cp_handler.cp_comm_strategy == "allgather"
    assert (layout.pp_handler.schedule, layout.pp_handler.stages_per_process) == ("1f1b", 1)
    assert PipelineParallelConfig("interleaved").stages_per_process == 2


def test_a_pipeline_is_described_by_variables_and_arguments_win(monkeypatch):
    monkeypatch.setenv("PARALLELISM_CONFIG_PP_SCHEDULE", "Interleaved1F1B")
    monkeypatch.setenv("PARALLELISM_CONFIG_PP_NUM_MICROBATCHES", "8")
    monkeypatch.setenv("PARALLELISM_CONFIG_PP_SPLIT_POINTS", "layers.1, layers.2")
    found = ParallelismConfig(pp_size=2).pp_handler
    assert (found.schedule, found.num_microbatches, found.stages_per_process) == ("interleaved", 8, 2)
    assert found.split_points == ["layers.1", "layers.2"]
    own = PipelineParallelConfig("gpipe", num_microbatches=2, split_points="auto", stages_per_process=1)
    assert (own.schedule, own.num_microbatches, own.split_points) == ("gpipe", 2, "auto")


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_known_by_the_names_of_torch_too(name):
    facts = SCHEDULES[name]
    found = PipelineParallelConfig(facts.name)
    assert (found.schedule, found.facts) == (name, facts)
    assert found.stages_per_process == (facts.stages or 2)


@pytest.mark.parametrize("given", ["auto", "layers.8", "layers.8,layers.16"])
def test_split_points_are_written_as_they_are_read(given):
    kind = option_of(ParallelismSettings, "pp_split_points").kind
    assert kind.format(kind.parse(given)) == given


def test_how_context_parallel_ranks_exchange(monkeypatch):
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_COMM_STRATEGY", "alltoall")
    assert TorchContextParallelConfig().cp_comm_strategy == "alltoall"
    with pytest.raises(ValueError, match="allgather"):
        TorchContextParallelConfig("ring")
