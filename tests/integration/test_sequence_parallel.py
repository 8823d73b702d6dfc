"""Sequences divided by the real DeepSpeed, for a LLaMA of transformers: the weights are those of one process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from accelerate.base.ports import get_free_port
from tests.contract import world
from tests.contract.world import World
from tests.integration import sequences
from tests.integration.sequences import Case

MISSING = [name for name in ("deepspeed", "transformers") if importlib.util.find_spec(name) is None]
#: Seconds that DeepSpeed may take to compile what it needs for the CPU, once on a machine.
BUILD = 900
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)} (make test-deepspeed)"),
    pytest.mark.timeout(BUILD + 300),
]
#: fp32; sums are taken in another order.
BOUND = 1e-5
START = "import deepspeed.comm; deepspeed.comm.init_distributed(dist_backend='gloo', auto_mpi_discovery=False)"

_world = cache(World)


@pytest.fixture(scope="module", autouse=True)
def _built() -> Iterator[None]:
    """Let DeepSpeed compile what it needs, which takes minutes the first time; end the processes afterwards.

    Processes that import transformers and DeepSpeed take longer to start than others.
    """
    limit, world.LIMIT = world.LIMIT, 600
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    env = {**os.environ, **place, "MASTER_PORT": str(get_free_port()), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", START], env=env, check=True, timeout=BUILD)
    yield
    world.LIMIT = limit
    for size in (1, 2, 4):
        _world(size).close()


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=BOUND, rtol=0)


@cache
def _alone(replicas: int, steps: int, count: int) -> dict:
    return _world(1).run(sequences.train, Case(replicas=replicas, steps=steps, count=count))[0]


CASES = {
    "two parts": (2, Case(sizes={"sp_size": 2})),
    "accumulation, with a short last window": (2, Case(sizes={"sp_size": 2}, steps=3)),
    "shards over the same ranks": (2, Case(sizes={"sp_size": 2}, shard=True, steps=3)),
    "compiled": (2, Case(sizes={"sp_size": 2}, compiled=True)),
    "four parts, of two heads of keys": (4, Case(sizes={"sp_size": 4})),
    "replicas": (4, Case(sizes={"sp_size": 2, "dp_replicate_size": 2}, replicas=2)),
    "shards": (4, Case(sizes={"sp_size": 2, "dp_shard_size": 2}, shard=True, replicas=2)),
    "divided layers": (4, Case(sizes={"sp_size": 2, "tp_size": 2})),
}


@pytest.mark.parametrize(("size", "case"), CASES.values(), ids=CASES.keys())
def test_weights_are_those_of_one_process(size, case):
    outcomes = _world(size).run(sequences.train, case)
    expected = _alone(case.replicas, case.steps, case.count)
    assert_close(outcomes[0]["weights"], expected["weights"])
    for outcome in outcomes:
        assert outcome["norms"] == pytest.approx(expected["norms"], abs=BOUND)
        assert outcome["length"] == expected["length"]


def test_the_loop_of_deepspeeds_authors_works():
    case = Case(sizes={"sp_size": 2})
    found = _world(2).run(sequences.train_by_hand, case)[0]["weights"]
    assert_close(found, _alone(1, 1, case.count)["weights"])


@pytest.mark.parametrize("place", [3, 4])
@pytest.mark.parametrize("shard", [False, True])
def test_a_run_goes_on_inside_of_a_turn_and_after_it(tmp_path, shard, place):
    case = Case(sizes={"sp_size": 2}, shard=shard, count=16)
    outcome = _world(2).run(sequences.resume, case, str(tmp_path), place)[0]
    assert outcome["count"] == 8 - place
    assert_close(outcome["weights"], outcome["expected"])


def test_evaluation_on_whole_and_on_divided_sequences():
    for outcome in _world(2).run(sequences.evaluate):
        assert len(outcome["differences"]) == 4
        assert max(outcome["differences"]) < BOUND


def test_lengths_and_rows_may_vary():
    for differences in _world(2).run(sequences.lengths):
        assert len(differences) == 4
        assert max(differences) < BOUND


def test_a_batch_that_one_rank_cannot_divide_is_refused_by_all():
    for text in _world(2).run(sequences.refused):
        assert "sequences of 15 tokens for sp_size=2" in text


def test_the_example_trains_under_its_template(tmp_path):
    examples = Path(__file__).parents[2] / "examples"
    template = examples / "configs" / "sequence_parallel_cpu.yaml"
    launch = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", str(template)]
    found = []
    for name, start in (("one", [sys.executable]), ("two", launch)):
        command = [*start, str(examples / "llama.py"), "--steps", "10", "--output", str(tmp_path / name)]
        env = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
        subprocess.run(command, env=env, check=True, timeout=BUILD)
        found.append(load_file(tmp_path / name / "model.safetensors"))
    assert_close(*found)


@pytest.mark.parametrize("shard", [False, True])
def test_transformers_trainer(tmp_path, shard):
    expected = _world(1).run(sequences.with_trainer, 1, False, str(tmp_path / "one"))[0]
    found = _world(2).run(sequences.with_trainer, 2, shard, str(tmp_path / "two"))[0]
    assert (found["steps"], found["losses"]) == (10, pytest.approx(expected["losses"], abs=1e-4))
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], abs=1e-4)
    assert_close(found["weights"], expected["weights"])
    again = _world(2).run(sequences.with_trainer, 2, shard, str(tmp_path / "two"), again=True)[0]
    assert_close(again["weights"], expected["weights"])
