"""The process group that a state asks for: its settings, and the backend that carries its collectives."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from accelerate.base.environ import parse_choice_from_env, parse_flag_from_env, read
from accelerate.base.messages import did_you_mean, message
from accelerate.cluster.base import ClusterEnvironment
from accelerate.cluster.environments import ExistingGroup
from accelerate.cluster.mpi import MPI
from accelerate.cluster.process_group import resolve_backend
from accelerate.devices.device import Device


@dataclass(frozen=True)
class GroupSettings:
    """What can be asked of the process group; one process alone has none, and no use for these.

    Args:
        backend: what carries the collectives; chosen for the device by default.
        timeout: how long a collective may take.
        init_method: how the processes meet.
        _use_sagemaker_dp: whether Amazon SageMaker's own backend carries them; by default, what its jobs set.
    """

    backend: str | None = None
    timeout: timedelta | None = None
    init_method: str | None = None
    _use_sagemaker_dp: bool | None = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> GroupSettings:
        """Return the settings in `given`; raise TypeError for a name that is none."""
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise TypeError(
                    message(
                        given=f"PartialState({name}=...)",
                        why="it is neither a setting of the state nor one of the process group",
                        allowed=", ".join(["cpu", *names]),
                        do=did_you_mean(name, names),
                    )
                )
        return cls(**given)

    @property
    def sagemaker(self) -> bool:
        """Whether SageMaker's backend is wanted."""
        if self._use_sagemaker_dp is not None:
            return self._use_sagemaker_dp
        distributed = parse_choice_from_env("ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE", "NO") != "NO"
        return distributed and parse_flag_from_env("ACCELERATE_USE_SAGEMAKER")


def choose_backend(environment: ClusterEnvironment, device: Device, requested: str | None) -> str:
    """Return the backend for several processes that `environment` started, each on a device such as `device`.

    Raises:
        ValueError: `requested` can't serve the device, or isn't that of the group that exists.
    """
    if isinstance(environment, ExistingGroup):
        return _running_backend(requested)
    return resolve_backend(
        requested,
        device=device.torch_device,
        preferred=device.spec.backend,
        with_cpu=_communicates_host_memory(),
        under_mpi=isinstance(environment, MPI),
    )


def _running_backend(requested: str | None) -> str:
    """Return the backend of the process group that exists already."""
    running = dist.get_backend()
    if requested is not None and requested != running:
        raise ValueError(
            message(
                given=f"backend={requested!r}",
                why=f"the script has formed its process group already, with backend {running!r}",
                allowed=f"{running!r}, or no backend at all",
                do="leave the backend out, or form the group with the other one",
            )
        )
    return running


def load_sagemaker_backend() -> str:
    """Return the name of SageMaker's backend, which importing its package registers."""
    try:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
    except ImportError as error:
        raise ImportError(
            message(
                given="SageMaker data parallelism: _use_sagemaker_dp, or what its jobs set in the environment",
                why="the package smdistributed.dataparallel can't be imported",
                allowed="jobs in the deep learning containers of Amazon SageMaker, which bring it",
                do="run the job there, or unset ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE to use the backend of the device",
            )
        ) from error
    return "smddp"


def _communicates_host_memory() -> bool:
    """Whether FSDP will communicate tensors in host memory: offloaded parameters, or full state dicts."""
    if not parse_flag_from_env("ACCELERATE_USE_FSDP"):
        return False
    full = read("FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT") == "FULL_STATE_DICT"
    return full or parse_flag_from_env("FSDP_OFFLOAD_PARAMS")
