"""What every test gets: a clean process.

The library keeps its state in the process, as scripts expect. A test must not see what another left there, so
after each test the environment is put back and the shared states are emptied, whether the test used them or not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Machines that run tests are shared: how long one example takes says nothing about the code.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

STATES = [
    ("accelerate.state.accelerator_state", "AcceleratorState"),
    ("accelerate.state.partial", "PartialState"),
    ("accelerate.state.gradient", "GradientState"),
]


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Put back the environment, the shared states and the record of warnings given once."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
    for module, name in STATES:
        if module in sys.modules:  # what is not loaded holds no state
            getattr(sys.modules[module], name)._reset_state()
    if "accelerate.base.messages" in sys.modules:
        sys.modules["accelerate.base.messages"].forget_warnings()
