"""What the environment says, as scripts import it: variables, devices, cores."""

from __future__ import annotations

from accelerate.base.environ import (
    are_libraries_initialized,
    clear_environment,
    convert_dict_to_env_variables,
    get_int_from_env,
    parse_choice_from_env,
    parse_flag_from_env,
    patch_environment,
    str_to_bool,
)
from accelerate.base.purge import purge_accelerate_environment
from accelerate.cluster.environments import (
    CPUInformation,
    get_cpu_distributed_information,
)
from accelerate.devices.affinity import (
    override_numa_affinity,
    set_numa_affinity,
)
from accelerate.devices.capability import (
    check_cuda_fp8_capability,
    get_current_device_type,
)
from accelerate.devices.nvidia import (
    check_cuda_p2p_ib_support,
    get_driver_version,
    get_gpu_info,
)

__all__ = [
    "CPUInformation",
    "are_libraries_initialized",
    "check_cuda_fp8_capability",
    "check_cuda_p2p_ib_support",
    "clear_environment",
    "convert_dict_to_env_variables",
    "get_cpu_distributed_information",
    "get_current_device_type",
    "get_driver_version",
    "get_gpu_info",
    "get_int_from_env",
    "override_numa_affinity",
    "parse_choice_from_env",
    "parse_flag_from_env",
    "patch_environment",
    "purge_accelerate_environment",
    "set_numa_affinity",
    "str_to_bool",
]
