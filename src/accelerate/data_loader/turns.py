"""Batches whose sequences are divided: the ranks of a group take turns, and all of them compute one rank's batch.

Each rank of the group reads batches of its own, as replicas do. DeepSpeed's `UlyssesSPDataLoaderAdapter` exchanges
them: of every batch that was read, each rank gets the part of the sequences that is its own, so that a group of N ranks
makes N steps of N batches. Before anything is exchanged, the ranks compare what they have read, so that a batch which
can't be divided is an error on all of them instead of a rank that the others wait for.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelerate.base.messages import message
from accelerate.comm.collectives import Collectives
from accelerate.data_loader.iteration import Pass

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from accelerate.data_loader.prepared import PreparedLoader


#: What labels that are shifted already are called while DeepSpeed exchanges them.
SHIFTED = "shift_labels as given"


class TurnPass(Pass):
    """One pass over a loader whose batches are divided along the sequence."""


class TurnLoader:
    """A prepared loader whose batches are divided among the ranks of a group, one rank's after the other.

    Batches are mappings of tensors [batch, sequence], with "input_ids" and "labels"; where there are no "position_ids",
    they are counted. What a rank gets has its part of each, and "shift_labels" (the token that follows each one, which
    may be on the next rank) in place of the labels. Batches that have "shift_labels" need no others.

    Where one batch of the wrapped loader is cut into slices for all ranks (`split_batches`), the ranks don't take
    turns: they get their parts of all slices of the group at once.

    Args:
        loader: a prepared loader, of which every rank of the group reads other batches.
        ranks: how the ranks of the group talk to each other.
        group: the group, for DeepSpeed.
        length: the length that all sequences have; None where it varies.
        packs: attention tells sequences that are packed into one row apart by their positions.
        skip: how many steps of the first turn every pass leaves out.

    `steps` is how many steps are made of one batch that each rank has read.
    """

    end_of_dataloader = False

    def __init__(
        self,
        loader: PreparedLoader,
        ranks: Collectives,
        group: ProcessGroup,
        *,
        length: int | None = None,
        packs: bool = False,
        skip: int = 0,
    ) -> None:
        self.base_dataloader = loader
        self.ranks, self.group = ranks, group
        self.length, self.packs = length, packs
        self.skip = skip
        self.steps = 1 if loader.splits_batches else ranks.world_size

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader":  # not there yet: this object is being built or unpickled
            raise AttributeError(name)
        return getattr(self.base_dataloader, name)

    def __len__(self) -> int:
        return len(self.base_dataloader) * self.steps - self.skip

    @property
    def total_batch_size(self) -> int | None:
        """How many samples all processes together compute in one step; None when batches are of any size."""
        read: int | None = self.base_dataloader.total_batch_size
        return None if read is None else read // self.steps

    def without_first(self, num_batches: int) -> TurnLoader:
        """Return a loader that begins `num_batches` later and shares the epoch of this one."""
        turns, skip = divmod(self.skip + num_batches, self.steps)
        return TurnLoader(
            self.base_dataloader.without_first(turns),
            self.ranks,
            self.group,
            length=self.length,
            packs=self.packs,
            skip=skip,
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        state, progress = self.base_dataloader.gradient_state, self.base_dataloader.progress
        steps, this_pass = self.steps, TurnPass(self)
        skip, read = self.skip, 0
        self.end_of_dataloader = False
        state.enter(this_pass)
        try:
            for number, batch in enumerate(self._parts() if steps > 1 else self._together()):
                place = number % steps + 1
                if place == 1:
                    read = progress.batches
                    skip = skip if number else skip or progress.part
                if number < skip:
                    continue
                if place < steps:  # a checkpoint continues inside of the turn
                    progress.batches, progress.part = read - 1, place
                else:
                    progress.batches, progress.part = read, 0
                    this_pass.end_of_dataloader = self.end_of_dataloader = self.base_dataloader.end_of_dataloader
                this_pass.turn = state.turn = state.turn + 1
                yield batch
        finally:
            state.leave(this_pass)

    def _parts(self) -> Iterator[dict[str, Any]]:
        """Yield this rank's part of the batch of every rank, those of one turn after those of the other."""
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPDataLoaderAdapter

        ranks = self.ranks
        for part in UlyssesSPDataLoaderAdapter(
            self._agreed(),
            sp_rank=ranks.rank,
            sp_group=self.group,
            sp_world_size=ranks.world_size,
            device=ranks.device,
        ):
            if SHIFTED in part:
                part["shift_labels"] = part.pop(SHIFTED)
            yield {name: _on(ranks.device, value) for name, value in part.items()}

    def _together(self) -> Iterator[dict[str, Any]]:
        """Yield this rank's part of the batches of all ranks at once."""
        parts = self._parts()
        for first in parts:
            others = [next(parts) for _ in range(self.ranks.world_size - 1)]
            yield {
                name: torch.cat([value, *(each[name] for each in others)]) if isinstance(value, torch.Tensor) else value
                for name, value in first.items()
            }

    def _agreed(self) -> Iterator[dict[str, Any]]:
        """Yield the batches that this rank reads, once all ranks of the group have one that can be divided.

        Raises:
            ValueError: a rank has a batch that can't be divided, or another number of rows than the others.
            RuntimeError: a rank has read all its batches before the others.
        """
        size = self.ranks.world_size
        batches = iter(self.base_dataloader)
        while True:
            batch = next(batches, None)
            problem = None if batch is None else problem_with(batch, size, self.length, self.packs)
            taken = _facts(batch) if batch is not None and problem is None else (0, 0, 0)
            facts = torch.tensor([batch is not None, problem is not None, *taken], device=self.ranks.device)
            has_batch, has_problem, rows, lengths, kinds = self.ranks.all_gather(facts).T.tolist()
            if any(has_problem):
                raise ValueError(next(text for text in self.ranks.all_gather_object(problem) if text))
            if not any(has_batch):
                return
            if not all(has_batch):
                raise RuntimeError(_ended(has_batch.index(0)))
            if len(set(rows)) > 1 or len(set(kinds)) > 1:
                raise ValueError(_unlike(rows))
            assert batch is not None
            # Between CPUs, only tensors of one size can be exchanged.
            longest = max(lengths) if self.ranks.device.type == "cpu" else 0
            yield lengthened(completed(batch), longest)


def _on(device: torch.device, value: Any) -> Any:
    """Return a part on the device, in memory of its own shape; what is no tensor as it is."""
    return value.to(device, non_blocking=True).contiguous() if isinstance(value, torch.Tensor) else value


def _facts(batch: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the rows and the length of a batch, and a number that stands for the names and dtypes of its tensors."""
    kinds = sorted((name, str(getattr(value, "dtype", ""))) for name, value in batch.items())
    rows, length = batch["input_ids"].shape
    return rows, length, zlib.crc32(repr(kinds).encode())


def completed(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch as DeepSpeed takes it, with the position of each token, which a part of a sequence can't show."""
    found, tokens = dict(batch), batch["input_ids"]
    if found.get("position_ids") is None:
        found["position_ids"] = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    if "shift_labels" in found:  # DeepSpeed shifts labels, and has to be given some
        found[SHIFTED] = found.pop("shift_labels")
        found.setdefault("labels", found[SHIFTED])
    return {name: each.contiguous() if isinstance(each, torch.Tensor) else each for name, each in found.items()}


def lengthened(batch: dict[str, Any], length: int) -> dict[str, Any]:
    """Return a batch with padding on the right, which no token before it sees and which isn't trained."""
    missing = length - batch["input_ids"].shape[1]
    if missing <= 0:
        return batch
    fills = {"labels": -100, SHIFTED: -100}
    found = {
        name: torch.nn.functional.pad(value, (0, missing), value=fills.get(name, 0))
        if isinstance(value, torch.Tensor)
        else value
        for name, value in batch.items()
    }
    positions = found["position_ids"]
    positions[:, -missing:] = torch.arange(length - missing, length, device=positions.device)
    return found


def problem_with(batch: Any, size: int, length: int | None, packs: bool) -> str | None:
    """Return why a batch can't be divided among `size` ranks, in four parts; None where it can be."""
    names = batch.keys() if isinstance(batch, Mapping) else ()
    if "input_ids" not in names or not {"labels", "shift_labels"}.intersection(names):
        return message(
            given=f"a batch with {', '.join(map(str, names))}"
            if names
            else f"a batch that is a {type(batch).__name__}",
            why="sequences are divided together with the token that follows each one, which is taken from the labels",
            allowed="mappings with input_ids and labels (or shift_labels)",
            do="let the collate function add them; labels=input_ids.clone(), with -100 for what isn't trained",
        )
    tokens = batch["input_ids"]
    odd = [
        f"{name} {list(value.shape)}"
        for name, value in batch.items()
        if isinstance(value, torch.Tensor) and value.shape != tokens.shape
    ]
    if odd or tokens.ndim != 2:
        return message(
            given=f"a batch with input_ids {list(tokens.shape)}{''.join(f' and {each}' for each in odd)}",
            why="all tensors are cut at the same places of the sequence, their second dim",
            allowed="tensors [batch, sequence] of one shape, and values that are no tensors",
            do="leave the others out in the collate function",
        )
    return _problem_with_length(tokens.shape[1], size, length) or _problem_with_values(batch, packs)


def _problem_with_length(found: int, size: int, length: int | None) -> str | None:
    below = found // size * size
    if found % size:
        return message(
            given=f"sequences of {found} tokens for sp_size={size}",
            why="every rank has an equally long part of each sequence",
            allowed=f"a length of {below} or {below + size}" if below else f"a length of {size}",
            do=f"pad or cut them in the collate function (pad_to_multiple_of={size})",
        )
    if length is not None and found != length:
        return message(
            given=f"sequences of {found} tokens with sp_seq_length={length}",
            why="sp_seq_length_is_variable=False says that all have this length",
            allowed=f"sequences of {length} tokens, or sp_seq_length_is_variable=True",
            do="pad or cut them, or leave the fixed length out",
        )
    return None


def _problem_with_values(batch: Mapping[str, Any], packs: bool) -> str | None:
    mask, positions = batch.get("attention_mask"), batch.get("position_ids")
    if isinstance(mask, torch.Tensor) and not bool(mask[:, 0].all()):
        return message(
            given="sequences with padding on their left",
            why="attention over divided sequences has no mask; what comes first is seen by all that follows",
            allowed="padding on the right, which no token before it sees",
            do="set tokenizer.padding_side = 'right'",
        )
    if not packs and isinstance(positions, torch.Tensor) and bool((positions[:, 1:] == 0).any()):
        return message(
            given="several sequences packed into one row (position_ids that begin again)",
            why="only flash attention tells them apart without a mask",
            allowed="a sequence per row, or attn_implementation='flash_attention_2'",
            do="load the model with flash attention, or turn packing off",
        )
    return None


def _ended(rank: int) -> str:
    return message(
        given=f"a loader that ended on rank {rank} of the ranks that divide sequences, and not on the others",
        why="every rank of the group takes part in the batches of all",
        allowed="loaders with equally many batches on all ranks",
        do="leave even_batches=True, or drop the last batches (drop_last=True)",
    )


def _unlike(rows: list[int]) -> str:
    return message(
        given=f"batches of {', '.join(map(str, rows))} rows on the ranks that divide sequences"
        if len(set(rows)) > 1
        else "batches with other tensors on the ranks that divide sequences",
        why="a batch is exchanged for parts of the others' batches",
        allowed="batches with the same names, dtypes and numbers of rows on all ranks",
        do="leave even_batches=True, and collate batches alike on all ranks",
    )
