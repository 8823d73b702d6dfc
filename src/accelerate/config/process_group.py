"""How the processes of a run are joined into a group."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from accelerate.config.kwargs import KwargsHandler

# Those of torch: what waits longer than this for another rank fails.
NCCL_TIMEOUT = timedelta(minutes=10)
OTHER_TIMEOUT = timedelta(minutes=30)


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """Arguments of `torch.distributed.init_process_group`.

    Args:
        backend: the library that carries data between ranks; the device's own unless another is named.
        init_method: where the ranks meet, as a URL; None reads it from the environment.
        timeout: how long a rank waits for the others; by default 10 minutes with nccl and 30 with the others.
    """

    backend: str | None = "nccl"
    init_method: str | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if self.timeout is None:
            self.timeout = NCCL_TIMEOUT if self.backend == "nccl" else OTHER_TIMEOUT
