"""All checks, in the order in which they are reported; a new one is a line here."""

from __future__ import annotations

from accelerate.doctor import collective, configuration, installation, machine, network
from accelerate.doctor.finding import Check

CHECKS: dict[str, Check] = {
    "versions": installation.versions,
    "configuration": configuration.configuration,
    "devices": machine.devices,
    "memory": machine.memory,
    "shared memory": machine.shared_memory,
    "storage": machine.storage,
    "meeting point": network.meeting_point,
    "machines": network.machines,
    "collective": collective.two_processes,
}
