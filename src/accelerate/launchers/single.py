"""One process: the script, in a Python of its own, with nothing between it and the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from accelerate.launchers.base import Launcher
from accelerate.launchers.command import command, is_plain
from accelerate.launchers.environment import environment
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.settings import LaunchSettings
from accelerate.launchers.torchrun import TorchrunLauncher

ALONE = "one process has nobody to meet"


class SingleLauncher(Launcher):
    """Starts the script once."""

    name = "single"
    without_effect: ClassVar[Mapping[str, str]] = {
        **TorchrunLauncher.without_effect,
        **dict.fromkeys(("main_process_ip", "main_process_port", "rdzv_conf", "same_network", "role"), ALONE),
        "monitor_interval": "its end is noticed at once",
    }

    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether there is one process."""
        return is_plain(config) and config.num_processes == 1

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return the command line of the process."""
        return LaunchPlan(self.name, command(config), environment(config), script=config.script)
