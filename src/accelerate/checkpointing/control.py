"""What a script calls to save: the methods about checkpoints that `Accelerator` inherits, with those of `resuming`."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from accelerate._lazy import lazy_module
from accelerate.base.messages import warn_once
from accelerate.checkpointing.resuming import ResumeControl, no_name
from accelerate.logging import get_logger

if TYPE_CHECKING:
    from accelerate.checkpointing.save import Job, Staging
    from accelerate.checkpointing.training import Training
    from accelerate.config.project import ProjectConfiguration

# What saving and loading need is imported when something is saved or loaded, so that starting does not wait for it.
agreement = lazy_module("accelerate.checkpointing.agreement")
folders = lazy_module("accelerate.checkpointing.folder")
model_files = lazy_module("accelerate.checkpointing.models")
object_files = lazy_module("accelerate.checkpointing.objects")
saving = lazy_module("accelerate.checkpointing.save")

logger = get_logger(__name__)

SaveHook = Callable[[list[Any], list[dict[str, torch.Tensor]], str], None]
LoadHook = Callable[[list[Any], str], None]


class CheckpointControl(ResumeControl):
    """Saving, loading and resuming, for the class that holds what is prepared."""

    if TYPE_CHECKING:  # what a class that inherits from this one has to bring
        project_configuration: ProjectConfiguration
        _custom_objects: list[Any]

        def _training(self) -> Training: ...

    def _init_checkpoints(self) -> None:
        """Take up what belongs to saving; called once, by the constructor."""
        self._load_model_state_pre_hook: OrderedDict[int, Any] = OrderedDict()
        self._save_model_state_pre_hook: OrderedDict[int, Any] = OrderedDict()

    def register_save_state_pre_hook(self, hook: SaveHook) -> RemovableHandle:
        """Call `hook(models, weights, output_dir)` before `save_state` writes.

        The hook may write files of its own into `output_dir`, and take out of `weights` (a list with the state of each
        model) what it has written itself: only what remains is written. It runs on every process; the list of the
        main process counts.

        Returns:
            a handle whose `remove()` takes the hook back.
        """
        return _registered(self._save_model_state_pre_hook, hook)

    def register_load_state_pre_hook(self, hook: LoadHook) -> RemovableHandle:
        """Call `hook(models, input_dir)` before `load_state` restores.

        The hook may load models itself and take them out of `models`: only what remains is loaded.

        Returns:
            a handle whose `remove()` takes the hook back.
        """
        return _registered(self._load_model_state_pre_hook, hook)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Remember objects with `state_dict` and `load_state_dict` as part of the state of training.

        Raises:
            ValueError: objects without these methods, all of which are named.
        """
        object_files.check_stateful(objects)
        self._custom_objects.extend(objects)

    def save(self, obj: Any, f: str | Path, safe_serialization: bool = False) -> None:
        """Write `obj` to the file `f` on the main process (of each node, with `save_on_each_node`).

        Args:
            safe_serialization: write tensors as safetensors; otherwise with `torch.save`.
        """
        each_node = self.project_configuration.save_on_each_node
        if self.is_local_main_process if each_node else self.is_main_process:
            object_files.save_object(obj, f, safe_serialization=safe_serialization)

    def save_model(
        self,
        model: torch.nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the weights of a prepared model for others to load. All processes have to call it.

        What is offloaded is brought in as it is written, so that it never has to fit in memory.

        Args:
            save_directory: gets `model.safetensors`, or shards with `model.safetensors.index.json`; weights of the
                same format that were there are removed.
            max_shard_size: bytes, or text such as "10GB".
            safe_serialization: write safetensors; otherwise `pytorch_model.bin` with `torch.save`.

        Raises:
            RuntimeError: the model has tensors without values: on the meta device, and not offloaded.
        """
        folder = Path(save_directory)
        if folder.is_file():
            logger.error(f"save_model({str(folder)!r}): this is a file; the weights of a model go into a folder.")
            return
        training = self._training()
        state, offloaded = training.strategy.state_dict(model), training.strategy.offloaded(model)
        model_files.check_saveable(state, offloaded)
        each_node = self.project_configuration.save_on_each_node
        writes = self.is_local_main_process if each_node else self.is_main_process

        def write() -> None:
            if writes:
                model_files.write_model(
                    state, folder, max_shard_size=max_shard_size, safe=safe_serialization, offloaded=offloaded
                )

        agreement.together(training.runtime.collectives, write, f"saving a model to {folder}")

    def save_state(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        safe_serialization: bool = True,
        *,
        blocking: bool | None = None,
        **save_model_func_kwargs: Any,
    ) -> Path:
        """Save everything that is needed to go on from here, in one folder that appears when it is complete.

        All processes have to call it.

        Args:
            output_dir: the folder. With automatic naming it is left out, and the next number is used.
            safe_serialization: write models as safetensors; otherwise with `torch.save`.
            blocking: return when the checkpoint is on disk. False returns once a snapshot in host memory is taken, and
                writes in the background; the next save, load or `wait_for_checkpoint` waits for that, and raises what
                went wrong. By default as `ProjectConfiguration(blocking_save=...)` says.
            save_model_func_kwargs: for strategies that lay models out in a way of their own.

        Returns:
            the folder.

        Raises:
            TypeError: no folder was given, without automatic naming.
            ValueError: the folder of the next number exists.
            OSError: the disk is full, the folder can't be written to, ... on this process;
                RuntimeError on the others.
        """
        self._background.wait()
        training, project = self._training(), self.project_configuration
        for name in save_model_func_kwargs:
            warn_once(f"save_state({name}=...) has no effect: the models of this run are saved whole.")
        collectives = training.runtime.collectives
        choose = self._folder_chooser(output_dir)
        staging = saving.begin(collectives, training.runtime.topology, choose, project.save_on_each_node)
        try:
            job = self._job(training, staging, safe_serialization)
            beside = None if self._is_blocking(blocking) else self._background.collectives(collectives)
            if beside is None:
                job.run()
            else:
                states = self._background.snapshot([state for _, state in job.states])
                job.states = [(record, state) for (record, _), state in zip(job.states, states, strict=True)]
                job.collectives = beside
                self._background.start(job)
        except BaseException:
            staging.discard()
            raise
        project.iteration += 1
        return staging.folder

    def _is_blocking(self, blocking: bool | None) -> bool:
        return bool(self.project_configuration.blocking_save) if blocking is None else blocking

    def _folder_chooser(self, output_dir: str | os.PathLike[str] | None) -> Callable[[], Path]:
        """Return the function that says, on the main process, where to save."""
        project = self.project_configuration
        if project.automatic_checkpoint_naming:
            if output_dir is not None:
                warn_once(f"save_state({str(output_dir)!r}): with automatic naming the folder has no effect.")
            return lambda: folders.numbered_folder(project.project_dir, project.iteration)
        if output_dir is None:
            raise TypeError(no_name("save_state()", "save_state(folder)"))
        folder = Path(os.path.expanduser(output_dir))
        return lambda: Path(os.path.realpath(folder))

    def _job(self, training: Training, staging: Staging, safe: bool) -> Job:
        """Run the hooks, take the states of what this process writes, and return the save that is to be run."""
        project, collectives = self.project_configuration, training.runtime.collectives

        def take() -> Job:
            models = list(training.models)
            weights = training.weights(models)
            for hook in self._save_model_state_pre_hook.values():
                hook(models, weights, str(staging.staged))
            records = training.records(models[: len(weights)], weights, safe=safe)
            open_models = training.windows.open_models()
            if open_models:
                records.append(training.gradients(open_models))
            mine = saving.assigned(records, staging, training.strategy.replicates)
            states = {id(record): record.state() for record in records if record.collective or record in mine}
            automatic = project.automatic_checkpoint_naming
            return saving.Job(
                collectives=collectives,
                staging=staging,
                states=[(record, states[id(record)]) for record in mine],
                manifest=training.manifest(records, project.iteration),
                limit=project.total_limit if automatic else None,
            )

        return agreement.together(collectives, take, "taking the states to save")

    def wait_for_checkpoint(self) -> None:
        """Return when the save that `save_state(blocking=False)` has begun is on disk.

        Raises:
            RuntimeError: it failed.
        """
        self._background.wait()


def _registered(hooks: OrderedDict[int, Any], hook: Any) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
