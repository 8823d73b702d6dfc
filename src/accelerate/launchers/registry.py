"""Every launcher by name, and the choice among them.

Other distributions add launchers with an entry point in the group `accelerate.launchers`; they are asked after ours.
"""

from __future__ import annotations

from accelerate.base.messages import message
from accelerate.base.registry import Registry
from accelerate.launchers.base import Launcher
from accelerate.launchers.settings import LaunchSettings

BUILT_IN: dict[str, str] = {
    "sagemaker": "accelerate.launchers.sagemaker:SageMakerLauncher",
    "slurm job": "accelerate.launchers.submit:SubmitLauncher",
    "ray": "accelerate.launchers.ray:RayLauncher",
    "tpu pod": "accelerate.launchers.tpu:TpuPodLauncher",
    "tpu": "accelerate.launchers.tpu:TpuLauncher",
    "deepspeed": "accelerate.launchers.deepspeed:DeepSpeedLauncher",
    "mpirun": "accelerate.launchers.mpirun:MpirunLauncher",
    "slurm": "accelerate.launchers.slurm:SlurmLauncher",
    "torchrun": "accelerate.launchers.torchrun:TorchrunLauncher",
    "single": "accelerate.launchers.single:SingleLauncher",
}

LAUNCHERS: Registry[type[Launcher]] = Registry("launchers")
for _name, _where in BUILT_IN.items():
    LAUNCHERS.register(_name, _where)


def select(config: LaunchSettings) -> Launcher:
    """Return the first launcher that accepts the settings.

    Raises:
        ValueError: none does.
    """
    for name in BUILT_IN:
        launcher = LAUNCHERS.get(name)()
        if launcher.accepts(config):
            return launcher
    for name in LAUNCHERS.names():
        launcher = LAUNCHERS.get(name)()
        if launcher.accepts(config):
            return launcher
    raise ValueError(
        message(
            given=config.kind_is_said,
            why="no launcher of this version starts such a run",
            allowed=f"what one of these starts: {', '.join(LAUNCHERS.names())}",
            do="choose another distributed_type (`accelerate config`), or install the package that brings the launcher",
        )
    )
