"""What is written to disk and read back: checkpoints that are whole or not there at all.

`control` is what `Accelerator` inherits. A checkpoint consists of `records`, one per object; `save` writes them into a
hidden folder and commits it, `load` checks everything before it changes anything. `durable` gets bytes onto the disk,
`manifest` says what a checkpoint consists of, `folder` knows names, rotation and the newest one. `background` saves
while training goes on, `models` and `merge` write models for others to load.
"""

from __future__ import annotations

from accelerate._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "accelerate.checkpointing.public": [
            "load_accelerator_state",
            "load_custom_state",
            "logger",
            "save_accelerator_state",
            "save_custom_state",
        ],
        "accelerate.checkpointing.source": ["CheckpointError"],
    },
)
