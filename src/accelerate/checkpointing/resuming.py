"""What a script calls to go on where it was: loading, resuming, and leaving when a signal says so."""

from __future__ import annotations

import itertools
import os
import signal
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate._lazy import lazy_module
from accelerate.base.messages import message
from accelerate.state.control import ProcessControl

if TYPE_CHECKING:
    from accelerate.checkpointing.background import Background
    from accelerate.checkpointing.load import Wish
    from accelerate.checkpointing.preemption import Preemption
    from accelerate.checkpointing.training import Training
    from accelerate.config.project import ProjectConfiguration

# What loading needs is imported when something is loaded, so that starting does not wait for it.
agreement = lazy_module("accelerate.checkpointing.agreement")
background = lazy_module("accelerate.checkpointing.background")
folders = lazy_module("accelerate.checkpointing.folder")
loading = lazy_module("accelerate.checkpointing.load")
positions = lazy_module("accelerate.checkpointing.position")
preempting = lazy_module("accelerate.checkpointing.preemption")
public = lazy_module("accelerate.checkpointing.public")

#: What processes leave with that a signal stopped: EX_TEMPFAIL, "try again later".
EXIT_CODE = 75
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Resumed:
    """Where training stands after `Accelerator.resume`; false when there was nothing to resume from.

    Args:
        folder: the checkpoint that was loaded, or None.
        epoch: the epoch of the first prepared data loader.
        batches: how many batches of it this process has seen.
    """

    folder: Path | None = None
    epoch: int = 0
    batches: int = 0

    def __bool__(self) -> bool:
        return self.folder is not None


class ResumeControl(ProcessControl):
    """Loading and resuming, for the class that saves."""

    _preemption: Preemption | None = None

    if TYPE_CHECKING:  # what a class that inherits from this one has to bring
        project_configuration: ProjectConfiguration
        _load_model_state_pre_hook: OrderedDict[int, Any]

        def _training(self) -> Training: ...

        def save_state(self, output_dir: Any = None, *, blocking: bool | None = None) -> Path: ...

    @cached_property
    def _background(self) -> Background:
        """The save that may be under way beside training."""
        return background.Background()

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: dict[str, Any] | None = None,
        *,
        strict: bool = True,
        parts: Collection[str] | None = None,
        **load_model_func_kwargs: Any,
    ) -> None:
        """Restore what `save_state` saved. All processes have to call it.

        Files are checked and compared with what is prepared before anything is changed, and everything that is wrong
        is said in one error.

        Args:
            input_dir: the folder; with automatic naming it can be left out, which takes the newest valid checkpoint,
                as "latest" does.
            load_kwargs: arguments of `torch.load`, for what was written with `torch.save`. By default nothing that a
                file contains is executed; {"weights_only": False} allows that.
            strict: False restores what fits, and warns of the rest.
            parts: which kinds of objects to restore, out of "models", "optimizers", "schedulers", "scaler", "custom",
                "data_loaders", "step" and "rng"; all by default.
            load_model_func_kwargs: handed on to `load_state_dict` of models. `map_location` ("cpu" or "on_device") is
                accepted for scripts that pass it: values are read where they lie and put where the objects are.

        Raises:
            ValueError: there is no such folder, or no such part.
            TypeError: an unknown `map_location`.
            CheckpointError: the checkpoint is damaged, or doesn't fit.
        """
        map_location = load_model_func_kwargs.pop("map_location", None)
        public.check_map_location(map_location)
        wish = self._wish(strict, parts, load_kwargs, load_model_func_kwargs)
        latest = input_dir is None or (str(input_dir) == "latest" and not Path(input_dir).is_dir())
        if latest and not self.project_configuration.automatic_checkpoint_naming:
            raise ValueError(no_name("load_state() without a folder", "load_state(folder)"))
        self._background.wait()
        if not latest:
            assert input_dir is not None
            folder = Path(os.path.realpath(os.path.expanduser(input_dir)))
            loading.load_folder(self._training(), folder, wish)
            self._count_on_from(folder)
        elif self._load_newest(folders.checkpoints_folder(self.project_configuration.project_dir), wish) is None:
            raise ValueError(_nothing_saved(self.project_configuration.project_dir))

    def resume(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        strict: bool = True,
        parts: Collection[str] | None = None,
        load_kwargs: dict[str, Any] | None = None,
        **load_model_func_kwargs: Any,
    ) -> Resumed:
        """Go on from the newest valid checkpoint, if there is any. All processes have to call it.

        `for epoch in range(accelerator.resume().epoch, num_epochs)` begins where the last run ended; the prepared data
        loaders begin with the batch that comes next.

        Args:
            root: the folder that has the checkpoints in it, whose names end with a number; by default where automatic
                naming puts them.
            strict: see `load_state`, as for the other arguments.

        Returns:
            where training stands.

        Raises:
            CheckpointError: there are checkpoints, but none is valid, or the newest valid one doesn't fit.
        """
        self._background.wait()
        wish = self._wish(strict, parts, load_kwargs, load_model_func_kwargs)
        folder = self._load_newest(
            folders.checkpoints_folder(self.project_configuration.project_dir) if root is None else Path(root), wish
        )
        if folder is None:
            return Resumed()
        training = self._training()
        if not training.loaders:
            return Resumed(folder)
        place = positions.position_of(training.loaders[0], training.runtime.gradient_state)
        return Resumed(folder, place["epoch"], place["batches"])

    def checkpoint_on_signal(
        self,
        *signals: int,
        output_dir: str | os.PathLike[str] | None = None,
        exit_code: int = EXIT_CODE,
        interval: float = 0.25,
    ) -> None:
        """Let a signal to any process make all of them finish the same step, save, and leave. All have to call this.

        They leave between two batches of the loop over a prepared data loader that trains, or where its next pass
        begins; a loop over anything else calls `leave_if_asked` at the end of a step. With a code that is not 0,
        `accelerate launch --max_restarts` starts the script again, which goes on after `resume()`. Workers of loaders
        outlive these signals when their pass begins after this call.

        Args:
            signals: what the scheduler sends before it takes the machine; SIGTERM by default.
            output_dir: where to save; left out with automatic naming.
            exit_code: what the processes leave with.
            interval: seconds between two looks for a signal that another process got.

        Raises:
            ValueError: a signal that can't be handled, a call from another thread than the main one, or no project
                folder for automatic naming.
            TypeError: no folder was given, without automatic naming.
        """
        chosen = preempting.check_signals(signals or (signal.SIGTERM,))
        project = self.project_configuration
        if project.automatic_checkpoint_naming:
            folders.checkpoints_folder(project.project_dir)
        elif output_dir is None:
            raise TypeError(no_name("checkpoint_on_signal()", "checkpoint_on_signal(output_dir=folder)"))
        self._forget_signals()
        topology = self._training().runtime.topology
        store = preempting.store_of(topology.world_size, next(_NUMBERS))
        self._preemption = preempting.Preemption(
            chosen,
            preempting.Rendezvous(topology.rank, topology.world_size, store, interval),
            self._training().runtime.gradient_state,
            lambda: preempting.leave(
                self._background.wait, lambda: self.save_state(output_dir, blocking=True), exit_code
            ),
        )

    def leave_if_asked(self) -> None:
        """Save and leave if a signal has asked for it; between two steps, on all processes alike.

        Only needed where no prepared data loader is iterated; see `checkpoint_on_signal`.

        Raises:
            SystemExit: it has.
        """
        if self._preemption is not None:
            self._preemption.step()

    def _close_checkpoints(self) -> None:
        """Wait for what is being saved, and let signals be; at the end of training."""
        self._forget_signals()
        self._background.close()

    def _forget_signals(self) -> None:
        """Let signals do again what they did before `checkpoint_on_signal`."""
        if self._preemption is not None:
            self._preemption.close()
            self._preemption = None

    def _wish(
        self,
        strict: bool,
        parts: Collection[str] | None,
        load_kwargs: dict[str, Any] | None,
        model_kwargs: dict[str, Any],
    ) -> Wish:
        hooks = tuple(self._load_model_state_pre_hook.values())
        return loading.Wish(loading.check_parts(parts), strict, load_kwargs or {}, model_kwargs, hooks)

    def _load_newest(self, root: Path, wish: Wish) -> Path | None:
        folder = loading.load_newest(self._training(), root, wish)
        if folder is not None:
            self._count_on_from(folder)
        return folder

    def _count_on_from(self, folder: Path) -> None:
        """Let the next automatic checkpoint come after all there are, when `folder` is one of them."""
        project = self.project_configuration
        if not project.automatic_checkpoint_naming or project.project_dir is None:
            return
        root = Path(os.path.realpath(folders.checkpoints_folder(project.project_dir)))
        if Path(os.path.realpath(folder)).parent == root:
            collectives = self._training().runtime.collectives
            numbered = folders.numbered_below
            newest = agreement.decided(
                collectives, lambda: max(folders.number_of(path) or 0 for path in numbered(root))
            )
            project.iteration = newest + 1


def no_name(given: str, instead: str) -> str:
    return message(
        given=f"{given} without automatic checkpoint naming",
        why="it doesn't say which folder is meant",
        allowed=f"{instead}; without a folder, if ProjectConfiguration(automatic_checkpoint_naming=True)",
        do=f"write {instead}, or turn automatic naming on",
    )


def _nothing_saved(project_dir: Any) -> str:
    return message(
        given=f"load_state() with project_dir={str(project_dir)!r}",
        why="no checkpoint has been saved there",
        allowed="a project with at least one checkpoint",
        do="call accelerator.resume() if there may be none yet, or name a folder",
    )
