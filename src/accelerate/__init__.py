"""Keep your own PyTorch loop and run it anywhere.

The names below, and the submodules, are imported when they are first used: `import accelerate` imports no torch.
"""

from __future__ import annotations

from importlib import import_module

from accelerate._lazy import lazy_exports
from accelerate.base.environ import parse_flag_from_env, read

__version__ = "1.16.0"

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "accelerate.accelerator": ["Accelerator"],
        "accelerate.base.packages": ["is_rich_available"],
        "accelerate.big_modeling": [
            "cpu_offload",
            "cpu_offload_with_hook",
            "disk_offload",
            "dispatch_model",
            "init_empty_weights",
            "init_on_device",
            "load_checkpoint_and_dispatch",
        ],
        "accelerate.big_modeling.device_map": ["infer_auto_device_map"],
        "accelerate.big_modeling.loading": ["load_checkpoint_in_model"],
        "accelerate.config.autocast": ["AutocastKwargs"],
        "accelerate.config.data_loader": ["DataLoaderConfiguration"],
        "accelerate.config.ddp": ["DistributedDataParallelKwargs"],
        "accelerate.config.enums": ["DDPCommunicationHookType", "DistributedType"],
        "accelerate.config.fsdp": ["FullyShardedDataParallelPlugin"],
        "accelerate.config.parallelism": ["ParallelismConfig"],
        "accelerate.config.process_group": ["InitProcessGroupKwargs"],
        "accelerate.config.profile": ["ProfileKwargs"],
        "accelerate.config.scaler": ["GradScalerKwargs"],
        "accelerate.data_loader": ["skip_first_batches"],
        "accelerate.devices.memory": ["find_executable_batch_size"],
        "accelerate.inference": ["prepare_pippy"],
        "accelerate.launchers.functions": ["debug_launcher", "notebook_launcher"],
        "accelerate.state": ["PartialState"],
        "accelerate.utils.random": ["synchronize_rng_states"],
    },
    submodules=[
        "accelerator",
        "big_modeling",
        "checkpointing",
        "commands",
        "data_loader",
        "hooks",
        "inference",
        "launchers",
        "local_sgd",
        "logging",
        "memory_utils",
        "optimizer",
        "parallelism_config",
        "scheduler",
        "state",
        "test_utils",
        "utils",
    ],
)

if parse_flag_from_env("ACCELERATE_ENABLE_RICH"):
    import_module("accelerate.utils.rich")  # installs the traceback handler

if read("ACCELERATE_RUN_FOLDER"):  # set by `accelerate launch` for the processes it starts
    import_module("accelerate.launchers.worker").set_up()
