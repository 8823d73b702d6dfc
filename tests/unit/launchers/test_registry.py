"""Launchers are chosen by the settings; those of other distributions come after ours."""

from __future__ import annotations

import pytest

from accelerate.launchers import registry
from accelerate.launchers.base import Launcher
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.settings import LaunchSettings
from tests.launch.plans import settings_of


class Elsewhere(Launcher):
    """A launcher that another distribution could bring."""

    name = "elsewhere"

    def accepts(self, config: LaunchSettings) -> bool:
        return True

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        return LaunchPlan(self.name, ("elsewhere", config.script))

    def run(self, plan: LaunchPlan) -> int:
        return 0


def test_a_launcher_of_another_distribution_takes_what_ours_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.LAUNCHERS._entries, "elsewhere", Elsewhere)
    assert (
        registry.select(settings_of("SCRIPT", "{distributed_type: MEGATRON_LM, num_processes: 8}")).name == "elsewhere"
    )
    assert registry.select(settings_of("SCRIPT")).name == "single"


def test_every_built_in_launcher_has_the_name_it_is_registered_by() -> None:
    assert [registry.LAUNCHERS.get(name).name for name in registry.BUILT_IN] == list(registry.BUILT_IN)
