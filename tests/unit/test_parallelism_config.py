"""The sizes of the axes of a mesh: what they are called, what they make together, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch.distributed as dist

from accelerate.base.environ import reading
from accelerate.parallelism_config import ParallelismConfig

#: Sizes -> the axes of the mesh, of data, of what is not data, of shards, of losses, for FSDP; total, data, the rest.
NAMES = [
    ({}, [], [], [], [], [], ["dp_shard_cp"], (1, 1, 1)),
    (
        {"dp_shard": 2, "dp_replicate": 4},
        ["dp_replicate", "dp_shard"],
        ["dp_replicate", "dp_shard"],
        [],
        ["dp_shard"],
        ["dp_replicate", "dp_shard"],
        ["dp_replicate", "dp_shard_cp"],
        (8, 8, 1),
    ),
    ({"cp": 2}, ["cp"], [], ["cp"], ["cp"], ["cp"], ["dp_shard_cp"], (2, 1, 2)),
    ({"sp": 2}, ["sp"], [], ["sp"], [], [], ["dp_shard_cp"], (2, 1, 2)),
    (
        {"tp": 2, "cp": 2, "dp_shard": 2, "dp_replicate": 2},
        ["dp_replicate", "dp_shard", "cp", "tp"],
        ["dp_replicate", "dp_shard"],
        ["cp", "tp"],
        ["dp_shard", "cp"],
        ["dp_replicate", "dp_shard", "cp"],
        ["dp_replicate", "dp_shard_cp"],
        (16, 4, 4),
    ),
]


def config_of(sizes: dict[str, int]) -> ParallelismConfig:
    return ParallelismConfig(**{f"{axis}_size": size for axis, size in sizes.items()})


@pytest.mark.parametrize(("sizes", "active", "dp", "non_dp", "shard_cp", "dp_cp", "fsdp", "totals"), NAMES)
def test_names_and_totals(sizes, active, dp, non_dp, shard_cp, dp_cp, fsdp, totals):
    config = config_of(sizes)
    assert config.active_mesh_dims == active
    assert config._get_mesh() == (tuple(active), tuple(sizes[axis] for axis in active))
    assert (config.dp_dim_names, config.non_dp_dim_names) == (dp, non_dp)
    assert (config.dp_shard_cp_dim_names, config.dp_cp_dim_names, config.fsdp_dim_names) == (shard_cp, dp_cp, fsdp)
    assert (config.total_size, config.data_parallel_size, config.non_data_parallel_size) == totals
    for axis in ("dp_replicate", "dp_shard", "tp", "cp", "sp"):
        assert getattr(config, f"{axis}_enabled") is (axis in active)


def test_sizes_may_come_from_the_environment():
    with reading({"PARALLELISM_CONFIG_DP_SHARD_SIZE": "2", "PARALLELISM_CONFIG_TP_SIZE": "3"}):
        config = ParallelismConfig(tp_size=4)
    assert config._sizes == {"dp_replicate": 1, "dp_shard": 2, "tp": 4, "cp": 1, "sp": 1, "pp": 1}
    assert (config.cp_backend, config.sp_backend) == ("torch", "deepspeed")


def test_it_can_be_written_down():
    config = ParallelismConfig(dp_shard_size=2)
    assert json.loads(config.to_json()) == {
        "dp_replicate_size": 1,
        "dp_shard_size": 2,
        "tp_size": 1,
        "cp_size": 1,
        "cp_backend": "torch",
        "sp_size": 1,
        "sp_backend": "deepspeed",
        "pp_size": 1,
    }
    assert "dp_shard_size=2" in repr(config)
    assert "total_size=2" in repr(config)
    assert config == ParallelismConfig(dp_shard_size=2) != ParallelismConfig()


REFUSED = [
    ({"tp_size": 0}, "it is smaller than 1"),
    ({"cp_size": 2, "sp_size": 2}, "set the other to 1"),
    ({"cp_size": 2, "cp_backend": "ring"}, "torch"),
    ({"sp_size": 2, "sp_backend": "ring"}, "deepspeed"),
]


@pytest.mark.parametrize(("arguments", "text"), REFUSED)
def test_what_is_refused(arguments, text):
    with pytest.raises(ValueError) as error:
        ParallelismConfig(**arguments)
    assert text in str(error.value)


@pytest.fixture
def eight():
    """A process that believes to be rank 5 of eight."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=5, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_the_mesh_and_its_views(eight):
    config = config_of({"dp_replicate": 2, "dp_shard": 2, "tp": 2})
    mesh = config.get_device_mesh("cpu")
    assert mesh.mesh_dim_names == ("dp_replicate", "dp_shard", "tp")
    assert list(mesh.get_coordinate()) == [1, 0, 1]
    assert config.get_device_mesh() is mesh
    assert config.get_device_mesh("cpu") is mesh
    with pytest.raises(ValueError, match="the mesh is one of cpu devices"):
        config.get_device_mesh("cuda")


def test_a_mesh_needs_to_know_the_device():
    with pytest.raises(ValueError, match="the mesh is not built yet"):
        ParallelismConfig(dp_shard_size=2).get_device_mesh()
    assert ParallelismConfig().get_device_mesh("cpu") is None
    with pytest.raises(ValueError, match="the mesh has no such axis"):
        ParallelismConfig()._set_size("ep", 2)
