"""What has to be installed where a run is started: a launch says so before it starts processes that would all fail."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from accelerate.base.messages import message
from accelerate.launchers.settings import LaunchSettings

#: A module, whether a run needs it here, and how it is installed.
NEEDED: tuple[tuple[str, Callable[[LaunchSettings], bool], str], ...] = (
    ("deepspeed", lambda settings: settings.uses_deepspeed, "pip install 'accelerate[deepspeed]'"),
    (
        "torch_xla",
        lambda settings: settings.on_tpu and not settings.get("tpu_use_cluster"),
        "pip install 'accelerate[tpu]', and the torch that this torch_xla was made for",
    ),
)


def check_installed(settings: LaunchSettings) -> None:
    """Refuse a run whose modules are missing; a run that is submitted finds out where it runs.

    Raises:
        ImportError: names the module, and what installs it.
    """
    if settings.job is not None or settings.get("submit") is not None:
        return
    for module, needs, install in NEEDED:
        if needs(settings) and importlib.util.find_spec(module) is None:
            raise ImportError(
                message(
                    given=f"{settings.kind_is_said} where {module} isn't installed",
                    why=f"the run can't do without {module}",
                    allowed="an environment that has it, on every machine of the run",
                    do=install,
                )
            )
