"""What `torch.profiler` records, and where it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from accelerate.base.constants import PROFILE_PATTERN_NAME
from accelerate.base.messages import did_you_mean, message
from accelerate.config.kwargs import KwargsHandler

if TYPE_CHECKING:
    import torch

ProfilerActivity = Literal["cpu", "xpu", "mtia", "cuda", "hpu"]


@dataclass
class ProfileKwargs(KwargsHandler):
    """Arguments of `torch.profiler.profile`.

    Args:
        activities: what to watch, such as "cpu" and "cuda"; None is all that the machine has.
        schedule_option: arguments of `torch.profiler.schedule`: `wait`, `warmup`, `active`, `repeat`, `skip_first`.
        on_trace_ready: called with the profiler at the end of each cycle of the schedule.
        record_shapes: note the shapes of inputs.
        profile_memory: note memory that is taken and given back.
        with_stack: note file and line.
        with_flops: estimate the floating-point operations of matrix products and convolutions.
        with_modules: note the modules that TorchScript models consist of.
        output_trace_dir: a folder for one `profile_<rank>.json` per process, to open in Perfetto or chrome://tracing.
    """

    activities: list[ProfilerActivity] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Callable[..., Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None

    def build(self) -> torch.profiler.profile:
        """Return the profiler these settings describe.

        Raises:
            ValueError: an activity that this build of torch doesn't know.
        """
        import torch

        return torch.profiler.profile(
            activities=None if self.activities is None else self._activities(self.activities),
            schedule=torch.profiler.schedule(**self.schedule_option) if self.schedule_option is not None else None,
            on_trace_ready=self.on_trace_ready,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
            with_modules=self.with_modules,
        )

    def export(self, profiler: torch.profiler.profile, rank: int) -> None:
        """Write what `profiler` of process `rank` has seen to its file in `output_trace_dir`."""
        folder = Path(self.output_trace_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / PROFILE_PATTERN_NAME.format(suffix=rank)))

    def _activities(self, names: Iterable[str]) -> list[torch.profiler.ProfilerActivity]:
        """Return torch's members for the activities called `names`."""
        return [self._get_profiler_activity(name) for name in names]

    def _get_profiler_activity(self, activity: str) -> torch.profiler.ProfilerActivity:
        """Return torch's member for one activity."""
        import torch

        members = {name.lower(): member for name, member in torch.profiler.ProfilerActivity.__members__.items()}
        if activity not in members:
            raise ValueError(
                message(
                    given=f"profiler activity {activity!r}",
                    why="this build of torch records no activity of that name",
                    allowed=", ".join(members),
                    do=did_you_mean(activity, members),
                )
            )
        return members[activity]
