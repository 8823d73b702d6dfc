"""Loading a checkpoint: find it, check its files, compare it with what is prepared, and only then change anything.

Everything that is wrong is said in one message. Restoring less than everything has to be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate.base.messages import did_you_mean, message
from accelerate.checkpointing.agreement import decided, gathered, together
from accelerate.checkpointing.durable import FileFact
from accelerate.checkpointing.folder import clear_leftovers, manifest_or_problem, numbered_below
from accelerate.checkpointing.layout import LOADERS, MANIFEST, PATTERNS, names_of, rng_name
from accelerate.checkpointing.manifest import Manifest, problems_of_files
from accelerate.checkpointing.model_records import ModelRecord
from accelerate.checkpointing.objects import load_object
from accelerate.checkpointing.position import FORMAT_KEY, StatefulLoaderRecord
from accelerate.checkpointing.reading import readers
from accelerate.checkpointing.records import OptimizerRecord, Record
from accelerate.checkpointing.source import CheckpointError, Source
from accelerate.checkpointing.training import PARTS, Training
from accelerate.logging import get_logger
from accelerate.state.runtime import Runtime

logger = get_logger(__name__)


@dataclass(frozen=True)
class Wish:
    """What is to be restored, and how.

    Args:
        parts: which kinds of objects.
        strict: whether all of it has to be there and to fit.
        load_kwargs: arguments of `torch.load`.
        model_kwargs: arguments of `load_state_dict` of models.
        hooks: called as `hook(models, folder)`; may take models out of the list.
    """

    parts: Collection[str] = PARTS
    strict: bool = True
    load_kwargs: Mapping[str, Any] = field(default_factory=dict)
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    hooks: Sequence[Callable[[list[Any], str], None]] = ()


def check_parts(parts: Collection[str] | None) -> Collection[str]:
    """Return the kinds of objects to restore, all by default.

    Raises:
        ValueError: one of them is none.
    """
    for part in parts or ():
        if part not in PARTS:
            raise ValueError(
                message(
                    given=f"parts with {part!r}",
                    why="a checkpoint has no such part",
                    allowed=", ".join(map(repr, PARTS)),
                    do=did_you_mean(part, PARTS),
                )
            )
    return PARTS if parts is None else parts


def load_folder(training: Training, folder: Path, wish: Wish) -> None:
    """Restore from the checkpoint `folder`.

    Raises:
        ValueError: there is no such folder.
        CheckpointError: it is damaged, or doesn't fit.
    """

    def find() -> None:
        if not folder.exists():
            clear_leftovers(folder)
        if not folder.is_dir():
            raise ValueError(_no_folder(folder))

    decided(training.runtime.collectives, find)
    manifest, problems = verify(training.runtime, folder, wish.parts)
    if problems:
        raise CheckpointError(_damaged(folder, problems))
    restore(training, folder, manifest, wish)


def load_newest(training: Training, root: Path, wish: Wish) -> Path | None:
    """Restore from the newest valid checkpoint in `root` and return it; None when there is none at all.

    Raises:
        CheckpointError: there are checkpoints, and none of them is valid; or the newest valid one doesn't fit.
    """
    skipped: list[str] = []
    for folder in decided(training.runtime.collectives, lambda: numbered_below(root)):
        manifest, problems = verify(training.runtime, folder, wish.parts)
        if not problems:
            if skipped:
                logger.warning(f"Loading {folder}; skipped {'; '.join(skipped)}")
            restore(training, folder, manifest, wish)
            return folder
        skipped.append(f"{folder.name} ({'; '.join(problems)})")
    if skipped:
        raise CheckpointError(_damaged(root, skipped))
    return None


def verify(runtime: Runtime, folder: Path, parts: Collection[str] = PARTS) -> tuple[Manifest | None, list[str]]:
    """Return the manifest of a checkpoint and what is wrong with its files; the ranks of a machine share the work.

    Args:
        runtime: this rank and how it talks to the others.
        folder: the checkpoint.
        parts: files that belong to other parts only are not looked at.
    """
    topology = runtime.topology

    def look() -> tuple[Manifest | None, list[str]]:
        manifest, problems = manifest_or_problem(folder)
        if manifest is None:
            return None, problems or _manifest_lost(folder, topology.rank)
        names = [name for name in manifest.files if not parts_of(name) or parts_of(name) & set(parts)]
        mine = shared_out(manifest.files, names, topology.local_world_size)[topology.local_rank]
        threads = readers(topology.local_world_size)
        return manifest, problems_of_files(folder, manifest.files, mine, thorough=True, threads=threads)

    found = gathered(runtime.collectives, look, f"checking the checkpoint {folder}")
    manifest, _ = found[topology.rank]
    return manifest, sorted({problem for _, problems in found for problem in problems})


def _manifest_lost(folder: Path, rank: int) -> list[str]:
    """Return a line when a folder without manifest was written with one, judging by its random states."""
    for name in (rng_name(rank), rng_name(0)):
        path = folder / name
        if path.is_file():
            try:
                states = load_object(path, map_location="cpu", mmap=True)
            except Exception as error:  # an unreadable file is a finding like any other
                return [f"{name} can't be read: {str(error).strip().splitlines()[0]}"]
            return [f"{MANIFEST} is missing"] if isinstance(states, Mapping) and FORMAT_KEY in states else []
    return []


def parts_of(name: str) -> set[str]:
    """Return the parts that a file belongs to; none for files of hooks."""
    if name == LOADERS:
        return {"data_loaders"}
    top = name.partition("/")[0]  # of a folder of shards
    part = next((part for part, pattern in PATTERNS.items() if pattern.fullmatch(top)), None)
    return {"rng": {"rng", "step"}, "gradients": {"step"}, None: set()}.get(part, {str(part)})


def shared_out(files: Mapping[str, FileFact], names: Sequence[str], ranks: int) -> list[list[str]]:
    """Return which files each of `ranks` ranks reads, so that all read about equally much."""
    shares: list[list[str]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for name in sorted(names, key=lambda name: (-files[name].size, name)):
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += files[name].size
    return shares


def restore(training: Training, folder: Path, manifest: Manifest | None, wish: Wish) -> None:
    """Restore from a checkpoint whose files are as they should be.

    Raises:
        CheckpointError: it doesn't fit what is prepared.
    """
    collectives = training.runtime.collectives
    models = list(training.models)
    for hook in wish.hooks:
        hook(models, str(folder))
    threads = readers(training.runtime.topology.local_world_size)
    source = Source(folder, manifest, wish.load_kwargs, wish.model_kwargs, wish.strict, threads)
    records = wanted_records(training, models, source, wish.parts)
    found = gathered(collectives, lambda: misfits(records, source, wish.parts), f"comparing with {folder}")
    problems = list(dict.fromkeys(problem for one in found for problem in one))
    if problems and wish.strict:
        raise CheckpointError(_misfit(folder, problems))
    if problems:
        logger.warning(f"Not everything is restored from {folder}:\n" + "\n".join(f"- {each}" for each in problems))
        records = [record for record in records if record.can_restore(source)]

    def put_back() -> None:
        for record in records:
            record.restore(source)

    together(collectives, put_back, f"restoring from {folder}")
    source.close()


def wanted_records(training: Training, models: Sequence[Any], source: Source, parts: Collection[str]) -> list[Record]:
    """Return the records to restore from `source`."""
    records = training.records(models, training.weights(models) if "models" in parts else [], parts=parts)
    if source.manifest is None:  # 1.15 keeps positions of stateful loaders only, in files of their own
        theirs = [StatefulLoaderRecord(index, loader) for index, loader in enumerate(training.loaders)]
        records = [record for record in records if record.name != LOADERS]
        records[-1:-1] = [record for record in theirs if record.part in parts and source.has(record.name)]
    if "step" in parts and names_of("gradients", source.folder):
        records.insert(-1, training.gradients(training.models))
    return records


def misfits(records: Sequence[Record], source: Source, parts: Collection[str]) -> list[str]:
    """Return everything that keeps `records` from being restored, and what `source` has beyond them; one line each."""
    problems = [problem for record in records for problem in record.check(source)]
    for part in ("models", "optimizers", "schedulers", "custom"):
        expected = {record.name for record in records}
        if part == "models":
            expected = {name for record in records if isinstance(record, ModelRecord) for name in record.names}
        if part == "optimizers":
            expected = {name for record in records if isinstance(record, OptimizerRecord) for name in record.found_as}
        if part in parts:
            problems += [
                f"{name} is there, but nothing is prepared for it"
                for name in sorted(names_of(part, source.folder) - expected)
            ]
    for name, part in (("scaler.pt", "scaler"), (LOADERS, "data_loaders")):
        if part in parts and source.has(name) and all(record.name != name for record in records):
            problems.append(f"{name} is there, but nothing is prepared for it")
    return problems


def _no_folder(folder: Path) -> str:
    return message(
        given=f"the checkpoint {folder}",
        why="there is no such folder",
        allowed="a folder that save_state wrote, by this release or by 1.15",
        do="look at the path, or load the newest one with accelerator.resume()",
    )


def _damaged(folder: Path, problems: Sequence[str]) -> str:
    return message(
        given=f"the checkpoint {folder}",
        why="it is not what was saved:\n" + "\n".join(f"- {problem}" for problem in problems),
        allowed="checkpoints whose files have the sizes and checksums that their manifest lists",
        do="load an earlier one; accelerator.resume() finds the newest that is complete",
    )


def _misfit(folder: Path, problems: Sequence[str]) -> str:
    return message(
        given=f"the checkpoint {folder}",
        why="it doesn't fit what is prepared, and nothing was changed:\n"
        + "\n".join(f"- {problem}" for problem in problems),
        allowed="by default, everything that is saved is restored, and everything that is prepared was saved",
        do="prepare and register the same objects as when it was saved; or choose what to restore with "
        f"load_state(parts=[...]) out of {', '.join(PARTS)}; or take what fits with load_state(strict=False)",
    )
