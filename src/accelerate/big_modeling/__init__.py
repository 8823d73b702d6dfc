"""Models larger than a device: build them without memory, plan where their parts go, load, offload and run them.

`meta` builds models without memory. `units`, `sizes` and `tied` say what a model consists of, `budget` what devices
may hold; `planner` divides the parts of a `tree` among them, and `device_map` makes, tidies and checks the maps.
`memory_map` shows a plan, `drawing`, `svg` and `figure` draw it; `estimates` says what a model takes besides weights,
by the `shapes` of transformers, and `sources` finds the model that a person names, as a `skeleton` if need be.
`spans` and `checkpoint_file` find tensors in files, `loading` brings them to their places. `store` is the format of
offload folders, `offloaded` the mapping that hooks get weights from, and `dispatch` puts the hooks on a model. The
`engine` behind that mapping learns the `order` in which modules run and reads ahead. `quantization` loads linear layers
in few bits, and `stages` and `batches` are what pipelines for inference are made of.
"""

from __future__ import annotations

from accelerate.big_modeling.checkpoints import load_checkpoint_and_dispatch
from accelerate.big_modeling.device_map import check_device_map
from accelerate.big_modeling.dispatch import cpu_offload, cpu_offload_with_hook, disk_offload, dispatch_model
from accelerate.big_modeling.layerwise import attach_layerwise_casting_hooks
from accelerate.big_modeling.memory_map import MemoryMap, map_memory
from accelerate.big_modeling.meta import init_empty_weights, init_on_device
from accelerate.big_modeling.settings import OffloadSettings
from accelerate.hooks import attach_align_device_hook_on_blocks

__all__ = [
    "MemoryMap",
    "OffloadSettings",
    "attach_align_device_hook_on_blocks",
    "attach_layerwise_casting_hooks",
    "check_device_map",
    "cpu_offload",
    "cpu_offload_with_hook",
    "disk_offload",
    "dispatch_model",
    "init_empty_weights",
    "init_on_device",
    "load_checkpoint_and_dispatch",
    "map_memory",
]
