"""Ranks in one process, each with a gradient state of its own."""

from __future__ import annotations

import warnings

import pytest

from accelerate.cluster.topology import Topology
from accelerate.comm.collectives import Alone
from accelerate.comm.fake import FakeWorld
from accelerate.devices.select import default_device
from accelerate.state.gradient import GradientState
from accelerate.state.runtime import Runtime


def runtime_of(collectives) -> Runtime:
    """Return the runtime of one rank; real states are shared by the process, and threads are ranks here."""
    own_state = type("OwnGradientState", (GradientState,), {"_shared_state": {}})()
    return Runtime(Topology(collectives.rank, collectives.world_size), default_device(), collectives, own_state)


@pytest.fixture(scope="session")
def runtime():
    """Return a function that makes the runtime of a process which is alone."""
    return lambda: runtime_of(Alone())


@pytest.fixture(scope="session")
def on_ranks():
    """Return a function that calls another on several ranks, with the runtime of each, and returns the results."""

    def run(num_ranks, function):
        with warnings.catch_warnings():
            # The ranks are threads here, and see it when another one draws.
            warnings.filterwarnings("ignore", message="Resuming inside an epoch of a dataset that draws")
            return FakeWorld(num_ranks).run(lambda ranks: function(runtime_of(ranks)))

    return run
