"""What a launch was told, merged: a flag wins over the config file, and what neither says stays open.

:class:`LaunchSettings` is all that a launcher looks at. It is complete once built: the hardware and the environment
are part of it, so that the same settings give the same plan on any machine.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accelerate.base.environ import str_to_bool
from accelerate.base.peer_to_peer import SWITCHES
from accelerate.config.cluster import SECTIONS, ClusterConfig
from accelerate.config.enums import DistributedType, value_of
from accelerate.config.option import Option, options
from accelerate.config.parallelism_settings import ParallelismSettings
from accelerate.config.resolve import Found, Settings, merge
from accelerate.config.sagemaker import SageMakerConfig
from accelerate.launchers.hardware import Hardware
from accelerate.launchers.options import LaunchOptions
from accelerate.launchers.plan import hide_secrets

#: The dataclasses whose Options are flags of `accelerate launch`; a declared section of the config file is one.
DECLARED: tuple[type, ...] = (Settings, ClusterConfig, *SECTIONS.values(), LaunchOptions)
DEFAULT_PORT = 29500
#: The kinds of run that say nothing about accelerators.
NO_DEVICES = (
    None,
    DistributedType.NO,
    DistributedType.MULTI_CPU,
    DistributedType.FSDP,
    DistributedType.DEEPSPEED,
    DistributedType.MEGATRON_LM,
)
#: Flags that say of which kind the run is, whatever the config file says.
KIND_OF_FLAG: dict[str, DistributedType] = {
    "use_deepspeed": DistributedType.DEEPSPEED,
    "use_fsdp": DistributedType.FSDP,
    "tpu": DistributedType.XLA,
    "tpu_use_cluster": DistributedType.XLA,
    "use_megatron_lm": DistributedType.MEGATRON_LM,
}
#: In a config file: the number of processes has to be given at launch.
AT_LAUNCH = -1


@functools.cache
def declared() -> dict[str, Option]:
    """Return every setting of a launch, by `dest`."""
    found: dict[str, Option] = {}
    for cls in DECLARED:
        for one in options(cls).values():
            found.setdefault(one.dest, one)
    return found


@dataclass(frozen=True)
class LaunchSettings:
    """The settings of one launch.

    Args:
        script: path of the script, name of the module, or program to run.
        arguments: what it is passed.
        found: what was said, by `dest`, with the door it came through ("flag", "file" or "SLURM").
        hardware: the accelerators that this machine offers.
        environ: the variables of the launching process.
        file: the config file that was read.
        job: what that file says, when it is about jobs on Amazon SageMaker.
        cores: the CPU cores to share among the processes; None to count them when that is needed.
    """

    script: str
    arguments: tuple[str, ...] = ()
    found: Mapping[str, Found] = field(default_factory=dict)
    hardware: Hardware = field(default_factory=Hardware)
    environ: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None
    job: SageMakerConfig | None = None
    cores: int | None = None

    @classmethod
    def of(
        cls,
        script: str,
        arguments: tuple[str, ...],
        flags: Mapping[str, Any],
        config: ClusterConfig | SageMakerConfig | None,
        **facts: Any,
    ) -> LaunchSettings:
        """Return the settings for these flags (by `dest`) and this config file."""
        found = merge(flags, config.values() if config is not None else {})
        job = config if isinstance(config, SageMakerConfig) else None
        return cls(script, arguments, found, job=job, **facts)

    def get(self, dest: str) -> Any:
        """Return a setting: what was said, or its default."""
        return self.found[dest].value if dest in self.found else declared()[dest].default

    def is_flag(self, dest: str) -> bool:
        """Whether a setting was given on the command line."""
        return dest in self.found and self.found[dest].source == "flag"

    def said(self, dest: str) -> str:
        """Return how a person would name what was said: the flag with its value, or the line of the config file."""
        value = value_of(self.get(dest))
        if self.is_flag(dest):
            flag = declared()[dest].flag
            return str(flag) if value is True else " ".join(hide_secrets([str(flag), str(value)]))
        where = "SLURM" if dest in self.found and self.found[dest].source == "SLURM" else self.file or "the config file"
        return f"`{declared()[dest].yaml}: {value}` in {where}"

    @property
    def label(self) -> DistributedType | None:
        """The kind of run that the config file names."""
        return self.found["distributed_type"].value if "distributed_type" in self.found else None

    @functools.cached_property
    def kind(self) -> DistributedType | None:
        """The kind of run: that of a flag, or else that of the config file, unless a flag denies it."""
        said = [kind for dest, kind in KIND_OF_FLAG.items() if self.is_flag(dest) and self.get(dest)]
        if said:
            return said[0]
        denied = {KIND_OF_FLAG[dest] for dest in KIND_OF_FLAG if dest != "tpu_use_cluster" and self.is_flag(dest)}
        if self.label == DistributedType.XLA and self.cpu_is_chosen:
            denied.add(DistributedType.XLA)
        plain = self.is_flag("multi_gpu") and self.get("multi_gpu") and self.label in KIND_OF_FLAG.values()
        return None if plain or self.label in denied else self.label

    @property
    def kind_is_said(self) -> str:
        """How a person would name what says of which kind the run is."""
        flags = [dest for dest in KIND_OF_FLAG if self.is_flag(dest) and self.get(dest)]
        return self.said(flags[0] if flags else "distributed_type") if flags or self.label else self.script

    @property
    def starts_elsewhere(self) -> bool:
        """Whether the processes run where this machine is no measure: of a service, a pod, a hostfile."""
        pod = self.on_tpu and bool(self.get("tpu_use_cluster"))
        submitted = self.job is not None or self.get("submit") is not None
        return submitted or pod or self.deepspeed_runner is not None

    @functools.cached_property
    def deepspeed_runner(self) -> str | None:
        """What DeepSpeed's own runner starts several machines with; None where torch's launcher does it."""
        several = self.num_machines > 1 or self.get("deepspeed_hostfile") is not None
        by_slurm = "num_machines" in self.found and self.found["num_machines"].source == "SLURM"
        chosen = self.get("deepspeed_multinode_launcher") or ("standard" if by_slurm else "pdsh")
        return str(chosen) if self.uses_deepspeed and several and chosen != "standard" else None

    @functools.cached_property
    def on_cpu(self) -> bool:
        """Whether the processes run on the CPU: because somebody said so, or because there is nothing else."""
        nothing_else = self.hardware.is_cpu and not self.wants_accelerators and not self.starts_elsewhere
        return self.cpu_is_chosen or nothing_else

    @functools.cached_property
    def cpu_is_chosen(self) -> bool:
        """Whether somebody asked for the CPU: by flag, config file or environment, in this order."""
        if self.is_flag("cpu"):
            return bool(self.get("cpu"))
        if self.is_flag("multi_gpu"):
            return not self.get("multi_gpu")
        if any(self.is_flag(dest) and self.get(dest) for dest in ("tpu", "tpu_use_cluster")):
            return False
        if self.label == DistributedType.MULTI_CPU:
            return True
        if "cpu" in self.found:
            return bool(self.get("cpu"))
        return bool(str_to_bool(self.environ.get("ACCELERATE_USE_CPU", "false")))

    @property
    def wants_accelerators(self) -> bool:
        """Whether somebody asked for accelerators, rather than taking what is there."""
        if self.is_flag("multi_gpu"):
            return bool(self.get("multi_gpu"))
        return self.on_tpu or (self.label not in NO_DEVICES and not self.is_flag("cpu"))

    @property
    def lays_out(self) -> bool:
        """Whether processes are laid out on a mesh: the flag says so, or the size of an axis was given."""
        if self.is_flag("use_parallelism_config"):
            return bool(self.get("use_parallelism_config"))
        return any(one.dest in self.found for one in options(ParallelismSettings).values())

    @property
    def uses_fsdp(self) -> bool:
        """Whether parameters are sharded by FSDP."""
        return self.kind == DistributedType.FSDP

    @property
    def uses_deepspeed(self) -> bool:
        """Whether DeepSpeed trains."""
        return self.kind == DistributedType.DEEPSPEED

    @property
    def on_tpu(self) -> bool:
        """Whether torch_xla starts the processes, which knows the cores of a TPU."""
        return self.kind == DistributedType.XLA

    @property
    def num_machines(self) -> int:
        """How many machines take part."""
        return int(self.get("num_machines"))

    @functools.cached_property
    def num_processes(self) -> int:
        """How many processes to start over all machines: as said, or one for each device."""
        if self.num_processes_is_said:
            return int(self.get("num_processes"))
        alone = self.on_cpu or (self.label == DistributedType.NO and not self.is_flag("multi_gpu"))
        return self.num_machines * (1 if alone else max(self.devices, 1))

    @property
    def num_processes_is_said(self) -> bool:
        """Whether somebody said how many processes to start; in a config file, -1 says that it comes later."""
        return "num_processes" in self.found and self.get("num_processes") != AT_LAUNCH

    @property
    def processes_here(self) -> int:
        """How many of the processes this machine starts."""
        return max(self.num_processes // self.num_machines, 1)

    @property
    def devices(self) -> int:
        """How many accelerators of this machine the run may use."""
        ids = self.chosen_ids
        return self.hardware.count if ids is None else min(len(ids.split(",")), self.hardware.count)

    @property
    def chosen_ids(self) -> str | None:
        """The numbers of the devices to use, with commas between; None for all."""
        ids = str(self.get("gpu_ids") or "all").replace(" ", "")
        return None if ids.lower() == "all" else ids

    @property
    def port(self) -> int | None:
        """The port that was asked for; None when any will do."""
        port = self.get("main_process_port")
        if port is None and self.num_machines > 1:
            return DEFAULT_PORT
        return port or None

    def chosen_for_you(self) -> list[str]:
        """Return a line for each thing that was nobody's choice."""
        return [] if self.starts_elsewhere or self.on_tpu else [*self._number_chosen(), *self._transfers_chosen()]

    def _number_chosen(self) -> list[str]:
        """Say how many processes are started, if nobody did."""
        if self.num_processes_is_said:
            return []
        what = "1 process" if self.num_processes == 1 else f"{self.num_processes} processes"
        where = "on the CPU" if self.on_cpu else f"on {self.hardware.kind}"
        why = "" if self.cpu_is_chosen else f", having found {self.hardware}"
        return [f"starting {what} {where}{why}; --num_processes, or `accelerate config`, says otherwise"]

    def _transfers_chosen(self) -> list[str]:
        """Say that GPUs don't talk to each other directly, if they would hang."""
        missing = [switch for switch in SWITCHES if switch not in self.environ]
        if self.on_cpu or self.hardware.peer_to_peer or self.num_processes == 1 or not missing:
            return []
        return [f"setting {' and '.join(missing)} to 1: with this driver, GPUs of the RTX 40 series hang without"]

    def __str__(self) -> str:
        lines = [f"  {self.said(dest)}" for dest in self.found if dest != "dry_run"]
        number = (
            []
            if self.num_processes_is_said
            else [f"  num_processes {self.num_processes}, having found {self.hardware}"]
        )
        return "\n".join(["settings:", *number, *lines])
