"""What scripts and libraries import from `accelerate.utils.deepspeed`."""

from __future__ import annotations

from accelerate.config.deepspeed_config import HfDeepSpeedConfig
from accelerate.strategies.deepspeed.stand_ins import (
    DeepSpeedOptimizerWrapper,
    DeepSpeedSchedulerWrapper,
    DummyOptim,
    DummyScheduler,
)

__all__ = [
    "DeepSpeedOptimizerWrapper",
    "DeepSpeedSchedulerWrapper",
    "DummyOptim",
    "DummyScheduler",
    "HfDeepSpeedConfig",
]
