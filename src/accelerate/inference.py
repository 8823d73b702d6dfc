"""One model over several processes, for inference: each has a part of the layers, and batches flow through them.

The model is traced and cut by `torch.distributed.pipelining`. A batch is cut into pieces, so that one process works on
the next piece while another has the one before. Pieces have the size that the example had; a batch of any other size
is taken in more or fewer of them, the last one filled up and what was filled left out of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from accelerate.base.messages import message, warn_once
from accelerate.big_modeling.batches import ExampleInputs, FlatModel
from accelerate.big_modeling.device_map import infer_auto_device_map
from accelerate.big_modeling.stages import (
    check_split_points,
    even_stages,
    first_of_stages,
    pass_in_order,
    split_at,
)
from accelerate.state import PartialState


def generate_device_map(
    model: torch.nn.Module,
    num_processes: int = 1,
    no_split_module_classes: str | Sequence[str] | None = None,
    max_memory: dict[int | str, int | str] | None = None,
) -> dict[str, Any]:
    """Return which process has which part of a model.

    Args:
        model: the model.
        num_processes: how many there are.
        no_split_module_classes: names of classes that are not to be split; by default repeated blocks.
        max_memory: bytes for each process; by default each gets about the same.

    Raises:
        ValueError: there are more processes than parts.
    """
    if max_memory is not None:
        return dict(infer_auto_device_map(model, max_memory, no_split_module_classes, clean_result=False))
    return dict(even_stages(model, num_processes, no_split_module_classes))


def find_pippy_batch_size(args: Any, kwargs: Any) -> int | None:
    """Return how many samples the inputs of a model have: the first dimension of the first tensor, None without one."""
    tensors = (each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor) and each.dim())
    return next((int(each.shape[0]) for each in tensors), None)


class Pipeline:
    """A model of which this process has one part; calling it runs a batch through all of them.

    Args:
        model: the model; it stays as it is.
        split_points: the names of the modules that parts but the first begin with.
        args: what it is called with, as an example: a batch.
        kwargs: by name.
        num_chunks: in how many pieces this batch is cut.
        gather_output: every process gets the output, not the last only.

    Raises:
        ValueError: there is no batch to cut, or the model can't be cut there.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        split_points: Sequence[str],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        num_chunks: int,
        gather_output: bool = False,
    ) -> None:
        state = PartialState()
        self.collectives = state._collectives
        self.device = state.device
        self.gather_output = gather_output
        batch = find_pippy_batch_size(args, kwargs)
        if not batch:
            raise ValueError(_no_example())
        self.inputs = ExampleInputs(args, kwargs, batch)
        #: How many samples a piece has.
        self.piece = -(-batch // num_chunks)
        self.traced = FlatModel(model, self.inputs)
        where = next((each.device for each in model.parameters()), self.device)
        example = self.inputs.pieces(args, kwargs, self.piece, self.piece, where)
        pipe = split_at(self.traced, [f"model.{name}" for name in split_points], example)
        if pipe.num_stages != self.collectives.world_size:
            raise ValueError(_not_cut(split_points, pipe.num_stages))
        self.traced.outputs.check(self.piece)
        #: The part of this process.
        self.stage = pass_in_order(pipe.build_stage(self.collectives.rank, device=self.device))
        self._schedule: tuple[int, Any] = (0, None)

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output for a batch, on the last process or on all; every process has to make the call.

        Args:
            args: inputs as in the example; those of the first process count.
            kwargs: by name.

        Raises:
            ValueError: the inputs differ from the example in more than the size of the batch.
        """
        batch, inputs = self._agree(args, kwargs)
        pieces = -(-batch // self.piece)
        if self._schedule[0] != pieces:
            from torch.distributed.pipelining import ScheduleGPipe

            self._schedule = (pieces, ScheduleGPipe(self.stage, pieces))
        found = self._schedule[1].step(*inputs)
        rows = [] if found is None else [each[:batch] for each in (found if _is_many(found) else (found,))]
        if self.gather_output:
            rows = self._from_last(rows, batch)
        return self.traced.outputs.build(rows) if rows else None

    def _agree(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, tuple[torch.Tensor, ...]]:
        """Return the size of the batch of the first process, and there its inputs, filled up."""
        first = self.collectives.rank == 0
        refusal = self.inputs.refusal(args, kwargs) if first else ""
        batch = self.inputs.batch_of(args, kwargs) if first and not refusal else 0
        size = self.collectives.broadcast(torch.tensor([batch], device=self.device), source=0)
        batch = int(size.item())
        if not batch:
            raise ValueError(self.collectives.broadcast_object(refusal, source=0))
        return batch, self.inputs.pieces(args, kwargs, batch, self.piece, self.device) if first else ()

    def _from_last(self, rows: list[torch.Tensor], batch: int) -> list[torch.Tensor]:
        """Return the output that the last process has."""
        if not rows:
            rows = [torch.empty((batch, *shape), dtype=dtype, device=self.device) for shape, dtype in self._rows()]
        last = self.collectives.world_size - 1
        return [self.collectives.broadcast(each.contiguous(), source=last) for each in rows]

    def _rows(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        return self.traced.outputs.rows


def build_pipeline(
    model: torch.nn.Module, split_points: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any], num_chunks: int
) -> Pipeline:
    """Return the pipeline of a model, see `Pipeline`; there is one more part than split points."""
    return Pipeline(model, split_points, args, kwargs, num_chunks)


def prepare_pippy(
    model: torch.nn.Module,
    split_points: str | list[str] | None = "auto",
    no_split_module_classes: str | list[str] | None = None,
    example_args: tuple[Any, ...] | None = (),
    example_kwargs: dict[str, Any] | None = None,
    num_chunks: int | None = None,
    gather_output: bool = False,
) -> torch.nn.Module:
    """Have a model run over all processes, each with a part of its layers.

    Args:
        model: the model, with its weights, on every process; it is returned in evaluation mode, and its calls then run
            the batch of the first process through all parts. The inputs that others pass are not looked at.
        split_points: names of the modules that parts but the first begin with, one less than there are processes;
            "auto" for parts of about the same size.
        no_split_module_classes: for "auto": names of classes that are not to be split; by default repeated blocks.
        example_args: what it is called with, as an example: a batch. All but the number of samples stays so.
        example_kwargs: by name.
        num_chunks: in how many pieces this batch is cut; by default as many as there are processes.
        gather_output: every process gets the output; by default the last one does, and the others get None.

    Raises:
        ValueError: there is no example, the model has no such parts, or can't be cut there.
    """
    state = PartialState()
    args, kwargs = tuple(example_args or ()), dict(example_kwargs or {})
    count = state.num_processes
    if find_pippy_batch_size(args, kwargs) is None:
        raise ValueError(_no_example())
    if num_chunks is not None and num_chunks < 1:
        raise ValueError(_no_chunks(num_chunks))
    if split_points in ("auto", None):
        split_points = first_of_stages(generate_device_map(model, count, no_split_module_classes), model)
    names = [split_points] if isinstance(split_points, str) else list(split_points or ())
    check_split_points(model, names, count)
    model.eval()
    extra: Any = model
    extra.hf_split_points = names
    if count == 1:
        warn_once("prepare_pippy with one process: the model stays whole, and runs as it is.", stacklevel=2)
        return model.to(state.device)
    pipeline = Pipeline(model, names, args, kwargs, num_chunks or count, gather_output)
    extra.pippy_stage = pipeline.stage
    model.forward = functools.update_wrapper(functools.partial(pipeline), model.forward)
    return model


def _is_many(found: Any) -> bool:
    return isinstance(found, (tuple, list))


def _no_example() -> str:
    return message(
        given="neither `example_args` nor `example_kwargs` with a tensor",
        why="the model is traced, and a batch is cut, as the example shows",
        allowed="a batch as the model will be called with",
        do="pass one, such as `example_args=(inputs,)`",
    )


def _no_chunks(num_chunks: int) -> str:
    return message(
        given=f"num_chunks={num_chunks}",
        why="a batch is cut into that many pieces",
        allowed="a whole number from 1 on",
        do="leave it out for one piece for each process",
    )


def _not_cut(split_points: Sequence[str], stages: int) -> str:
    return message(
        given=f"split points {', '.join(split_points)}",
        why=f"the model comes in {stages} parts there: one of them runs first, several times, or not at all",
        allowed="modules that run once when the model is called, with something before them",
        do="name others",
    )
