"""Where a run keeps its checkpoints and logs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from accelerate.config.resolve import setting


@dataclass
class ProjectConfiguration:
    """The folders of a run, and the naming of its checkpoints.

    Args:
        project_dir: the folder of the run.
        logging_dir: the folder for trackers; `project_dir` unless another is named.
        automatic_checkpoint_naming: save to `checkpoints/checkpoint_<iteration>` inside `project_dir`.
        total_limit: how many of these checkpoints are kept; None keeps all.
        iteration: the number of the next one.
        save_on_each_node: save on every machine rather than on the main one only.
        blocking_save: `save_state` returns when the checkpoint is on disk; False lets it be written while training
            goes on. By default as ACCELERATE_BLOCKING_SAVE says, which is true.
    """

    project_dir: str | os.PathLike[str] | None = None
    logging_dir: str | os.PathLike[str] | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False
    blocking_save: bool | None = None

    def __post_init__(self) -> None:
        self.blocking_save = setting("blocking_save", self.blocking_save)
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | os.PathLike[str] | None = None) -> None:
        """Make `project_dir` the folder of the run, and that of the trackers if none was named."""
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir
