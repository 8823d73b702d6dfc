"""A run of two processes is killed again and again: nothing is lost that was reported saved, and it ends the same.

ACCELERATE_TEST_KILLS says how often (`make test-faults`: 100 times); each second death is at a point inside of
saving, the others at a random moment. Where and when follows from a seed, which a failure names.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from accelerate.checkpointing.folder import PREFIX
from accelerate.checkpointing.manifest import problems_of_files, read_manifest

from .training import POINTS, SIZE, Fault, Life, live

KILLS = int(os.environ.get("ACCELERATE_TEST_KILLS", "10"))


def checkpoints(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints in a project, all of which have to be complete."""
    root = folder / "checkpoints"
    found = []
    for path in root.iterdir() if root.exists() else ():
        if path.name.startswith(PREFIX):
            manifest = read_manifest(path)
            assert manifest is not None, path
            assert problems_of_files(path, manifest.files, manifest.files, thorough=True) == []
            found.append(int(path.name.removeprefix(PREFIX)))
    return sorted(found)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, np.ndarray]:
    """The weights at the end of a run that nobody kills."""
    life = live(tmp_path_factory.mktemp("undisturbed"))
    assert life.saved == list(range(20))
    return life.weights


def assert_same(life: Life, weights: dict[str, np.ndarray]) -> None:
    assert all(np.array_equal(life.weights[name], value) for name, value in weights.items())


def disturb(dice: random.Random, number: int) -> dict[str, object]:
    """Return how the next life of a run ends."""
    if number % 2:
        return {"killed_after": dice.uniform(0, 1.5)}
    return {"fault": Fault(dice.randrange(SIZE), dice.choice(list(POINTS)), dice.randrange(1, 25))}


@pytest.mark.timeout(60 + 30 * KILLS)
def test_a_run_that_is_killed_again_and_again_ends_the_same(tmp_path, undisturbed):
    seed = random.randrange(10**6)
    dice, kills, newest = random.Random(seed), 0, None
    while kills < KILLS:
        ending = disturb(dice, kills)
        life = live(tmp_path, **ending)
        told = f"seed {seed}, kill {kills}: {ending}"
        assert life.resumed == newest, told
        there = checkpoints(tmp_path)
        assert not life.saved or there[-1] >= life.saved[-1], told
        assert newest is None or there[-1] >= newest, told
        if life.weights is None:
            kills += 1
            newest = there[-1] if there else None
        else:
            assert_same(life, undisturbed)
            shutil.rmtree(tmp_path / "checkpoints")
            newest = None
    last = live(tmp_path)
    assert last.resumed == newest
    assert_same(last, undisturbed)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("rank", range(SIZE))
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.skipif(KILLS < 100, reason="every point by itself is for `make test-faults`")
def test_every_point_by_itself(tmp_path, undisturbed, point, rank):
    occurrence = 1 if point == "half a removal" else 7
    life = live(tmp_path, fault=Fault(rank, point, occurrence))
    if rank == 0:
        assert life.weights is None, "the point was never reached"
    newest = (checkpoints(tmp_path) or [None])[-1]
    assert not life.saved or newest >= life.saved[-1]
    if life.weights is None:
        life = live(tmp_path)
        assert life.resumed == newest
    assert_same(life, undisturbed)
