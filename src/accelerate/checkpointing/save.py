"""Saving a checkpoint: every rank writes its part into a hidden folder, and one rank commits the whole.

Three times the ranks talk to each other: when the folder is chosen, when all have written (each says what its files
look like), and when the folder has its final name. A failure in between, on any rank, fails on all and leaves the
checkpoints that were there before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate.checkpointing.agreement import decided, gathered, together
from accelerate.checkpointing.durable import FileFact, flush_file, flush_folder, remove_folder
from accelerate.checkpointing.folder import clear_leftovers, commit, rotate, unfinished
from accelerate.checkpointing.layout import MANIFEST
from accelerate.checkpointing.manifest import Manifest, now
from accelerate.checkpointing.reading import fact_of
from accelerate.checkpointing.records import Record
from accelerate.cluster.topology import Topology
from accelerate.comm.collectives import Collectives
from accelerate.logging import get_logger

logger = get_logger(__name__)


@dataclass(frozen=True)
class Staging:
    """Where a checkpoint is written, seen from one rank.

    Args:
        folder: the final name.
        staged: the hidden folder beside it.
        topology: which rank this is.
        shared: this rank sees the folder of rank 0, rather than one of its own machine.
        each_node: machines with a folder of their own write everything.
    """

    folder: Path
    staged: Path
    topology: Topology
    shared: bool
    each_node: bool = False

    @property
    def commits(self) -> bool:
        """Whether this rank commits: rank 0, and the first rank of each machine that has a folder of its own."""
        return self.topology.is_main or (self.topology.is_local_main and not self.shared)

    @property
    def is_writer(self) -> bool:
        """Whether this machine writes what is the same on all ranks."""
        return self.topology.node_rank == 0 or (self.each_node and not self.shared)

    def discard(self) -> None:
        """Remove the hidden folder, after a failure."""
        if self.commits and self.staged.exists():
            with suppress(OSError):  # a full or vanished disk; whoever saves next tidies up
                remove_folder(self.staged)


def begin(collectives: Collectives, topology: Topology, choose: Callable[[], Path], each_node: bool) -> Staging:
    """Choose a folder on rank 0 and make the hidden one beside it, on every file system.

    Raises:
        ValueError: the folder can't be used.
        OSError: it can't be made.
    """

    def make() -> tuple[Path, Path]:
        folder = choose()
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(f"{folder} is a file; a checkpoint is a folder")
        clear_leftovers(folder)
        staged = unfinished(folder)
        if staged.exists():
            remove_folder(staged)
        staged.mkdir()
        return folder, staged

    folder, staged = decided(collectives, make)
    shared = staged.exists()

    def make_own() -> None:
        if topology.is_local_main and not shared:
            staged.mkdir(parents=True, exist_ok=True)

    collectives.barrier()  # nobody makes a folder before everybody has looked for that of rank 0
    together(collectives, make_own, f"making the folder {staged}")
    return Staging(folder, staged, topology, shared, each_node)


def assigned(records: Sequence[Record], staging: Staging, spread: bool) -> list[Record]:
    """Return the records that this rank writes.

    Args:
        records: all of them.
        staging: where they go.
        spread: optimizers are the same on all ranks, and are shared out among those of a machine.
    """
    topology = staging.topology
    ranks = topology.local_world_size if spread else 1
    turns = {id(each): turn % ranks for turn, each in enumerate((r for r in records if r.part == "optimizers"), 1)}
    return [
        record
        for record in records
        if record.everywhere or (staging.is_writer and topology.local_rank == turns.get(id(record), 0))
    ]


@dataclass
class Job:
    """A save whose states have been taken; `run` may happen on another thread.

    Args:
        collectives: all ranks, over a wire that nobody else uses while it runs.
        staging: where to write.
        states: what this rank writes.
        manifest: what the checkpoint is, but for its files.
        limit: how many automatic checkpoints may be kept, or None.
    """

    collectives: Collectives
    staging: Staging
    states: list[tuple[Record, Any]]
    manifest: Manifest
    limit: int | None = None

    def run(self) -> Path:
        """Write, commit and rotate; return the folder.

        Raises:
            Exception: this rank failed; RuntimeError where another one did.
        """
        try:
            facts = gathered(self.collectives, self._write, f"writing the checkpoint {self.staging.folder}")
            together(self.collectives, lambda: self._commit(facts), f"committing the checkpoint {self.staging.folder}")
        except BaseException:
            self.staging.discard()
            raise
        return self.staging.folder

    def _write(self) -> tuple[bool, int, dict[str, FileFact]]:
        """Write this rank's files and return what they look like, with which folder they are in."""
        facts = {}
        for record, state in self.states:
            facts.update(record.save(self.staging.staged, state, self.collectives))
        self.states = []  # lets go of a snapshot
        return self.staging.shared, self.staging.topology.node_rank, facts

    def _commit(self, facts: Iterable[tuple[bool, int, dict[str, FileFact]]]) -> None:
        staging = self.staging
        if not staging.commits:
            return
        files: dict[str, FileFact] = {}
        for shared, node, found in facts:
            if shared if staging.shared else (node == staging.topology.node_rank):
                files.update(found)
        files.update(facts_of_others(staging.staged, files))
        replace(self.manifest, files=dict(sorted(files.items())), created=now()).write(staging.staged)
        commit(staging.staged, staging.folder)
        if self.limit is not None:
            self._rotate(self.limit)

    def _rotate(self, limit: int) -> None:
        try:
            removed = rotate(self.staging.folder.parent, limit)
        except OSError as error:
            logger.warning(f"{self.staging.folder} is saved, but older checkpoints could not be removed: {error}")
        else:
            if removed:
                names = ", ".join(path.name for path in removed)
                logger.info(f"Removed {names}: {limit} checkpoints are kept.")


def facts_of_others(staged: Path, known: dict[str, FileFact]) -> dict[str, FileFact]:
    """Return what files look like that somebody else put there (a hook), after bringing them to the disk."""
    facts = {}
    for path in sorted(staged.rglob("*")):
        name = path.relative_to(staged).as_posix()
        if path.is_dir():
            flush_folder(path)
        elif name not in known and name != MANIFEST:
            with open(path, "rb") as file:
                flush_file(file.fileno())
            facts[name] = fact_of(path)
    return facts
