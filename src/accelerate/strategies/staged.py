"""Models whose layers are divided over the ranks of a pipeline, alone or in replicas that average their gradients.

Each rank holds the parameters of its stages; of the others it knows the shapes. Checkpoints are those of one
process: the main process gathers and writes them, and every rank reads what is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
import torch.distributed as dist

from accelerate.base.messages import message
from accelerate.checkpointing.layout import model_names
from accelerate.checkpointing.optimizer_states import names_of_groups, parameters_of
from accelerate.checkpointing.records import Record, names_by_identity, shortened
from accelerate.checkpointing.source import Source
from accelerate.config.enums import DistributedType, DynamoBackend
from accelerate.strategies import norms
from accelerate.strategies.axes.pipeline import Pipelined, is_elsewhere
from accelerate.strategies.axes.select import combined
from accelerate.strategies.base import Setup, Strategy, refuse_spread_models
from accelerate.strategies.bundle import Bundle
from accelerate.strategies.fsdp2.records import WholeModelRecord, WholeOptimizerRecord
from accelerate.strategies.unwrap import peel


@final
class Staged(Strategy):
    """A pipeline, or several with other data."""

    name = "staged"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        _refuse_others(setup)

    def label(self) -> DistributedType:
        return DistributedType(self.runtime.device.spec.label)

    def check(self, bundle: Bundle) -> None:
        super().check(bundle)
        refuse_spread_models(bundle)

    def placed(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return `model` where it is: a pipeline puts what a rank keeps of it on the device."""
        return model

    @contextmanager
    def no_sync(self, model: torch.nn.Module) -> Iterator[None]:
        pipeline = peel(model, parallel=False)[0]
        pipeline.is_synchronised = False
        try:
            yield
        finally:
            pipeline.is_synchronised = True

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        held = list(parameters)
        counted = norms.gradients_by_mesh(each for each in held if not getattr(each, "is_borrowed", False))
        total = combined(self.axes, norm_type)(norms.total_norm(counted.values(), norm_type))
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        gradients = [each.grad for each in held if each.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)
        return total

    def state_dict(self, model: torch.nn.Module, *, unwrap: bool = True) -> dict[str, Any]:
        """Return the full state of `model` in host memory on rank 0, an empty dictionary on the others."""
        return self._gathered(_bare(model))

    def weights(self, model: torch.nn.Module) -> dict[str, Any]:
        """Return the state of `model`, in which the parameters of other ranks have shapes alone."""
        return _bare(model).state_dict()

    def load_state_dict(self, model: torch.nn.Module, state: Mapping[str, Any], **kwargs: Any) -> Any:
        """Load a whole state that every rank has; each takes its own part of it."""
        bare, strict = _bare(model), kwargs.pop("strict", True)
        absent = _absent(bare)
        own = {name: value for name, value in state.items() if name not in absent}
        found = bare.load_state_dict(own, strict=False, **kwargs)
        missing = [name for name in found.missing_keys if name not in state]
        if strict and (missing or found.unexpected_keys):
            raise RuntimeError(_other_names(bare, missing, found.unexpected_keys))
        return found

    def _gathered(self, bare: torch.nn.Module) -> dict[str, Any]:
        """Return on the main process what the ranks have of the state of a bare model together."""
        state, absent = bare.state_dict(), _absent(bare)
        own = {
            name: each.detach().cpu() if isinstance(each, torch.Tensor) else each
            for name, each in state.items()
            if name not in absent
        }
        found = self._on_main(own)
        return {name: found[name] for name in state} if found else {}

    def _on_main(self, own: dict[Any, Any]) -> dict[Any, Any]:
        """Return on the main process the dictionaries of all ranks in one, an empty one elsewhere."""
        is_main = self.runtime.topology.is_main
        parts: list[Any] = [None] * self.runtime.topology.world_size
        sent = own if self._reads_first() else {}
        dist.gather_object(sent, parts if is_main else None, dst=0)
        return {key: value for part in reversed(parts) for key, value in part.items()} if is_main else {}

    def _reads_first(self) -> bool:
        """Whether this rank is of the first replica; the others have the same."""
        layout = self.setup.parallelism
        data = None if layout is None else layout.view("data")
        return data is None or data.get_local_rank() == 0

    def model_records(self, models: Sequence[Any], weights: Sequence[Any], *, safe: bool) -> list[Record]:
        return [
            StagedModelRecord(
                index,
                state,
                partial(self.load_state_dict, models[index]) if index < len(models) else None,
                partial(self._gathered, _bare(models[index])) if index < len(models) else partial(dict, state),
                safe,
            )
            for index, state in enumerate(weights)
        ]

    def optimizer_records(self, optimizers: Sequence[Any], models: Sequence[Any]) -> list[Record]:
        known = names_by_identity(models)
        return [
            StagedOptimizerRecord(index, each, names_of_groups(each, known), self._on_main)
            for index, each in enumerate(optimizers)
        ]


class StagedModelRecord(WholeModelRecord):
    """A model in stages that the main process writes as a whole, in the file of a model that isn't.

    Args:
        safe: write safetensors.
    """

    def __init__(self, index: int, weights: Mapping[str, Any], load: Any, gather: Any, safe: bool) -> None:
        super().__init__(index, weights, load, gather)
        self.name, self.safe = model_names(index)[0 if safe else 1], safe


class StagedOptimizerRecord(WholeOptimizerRecord):
    """An optimizer of which every rank has the states of its own parameters.

    Args:
        on_main: puts the dictionaries of all ranks together on the main process.
    """

    def __init__(self, index: int, optimizer: Any, names: list[list[str | None]], on_main: Any) -> None:
        super().__init__(index, optimizer, names, keep=True)
        self.on_main = on_main

    def _let_go(self) -> None:
        for parameter in parameters_of(self.owner):
            if is_elsewhere(parameter):  # its rank has the state that counts
                self.owner.state.pop(parameter, None)

    def restore(self, source: Source) -> None:
        super().restore(source)
        self._let_go()

    def state(self) -> Any:
        self._let_go()
        own = super().state()
        return {**own, "state": self.on_main(own["state"])}


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    found = peel(model, parallel=False)[0]
    return found.module if isinstance(found, Pipelined) else found


def _absent(bare: torch.nn.Module) -> set[str]:
    """Return the names of the parameters that other ranks have."""
    return {name for name, each in bare.named_parameters(remove_duplicate=False) if is_elsewhere(each)}


def _other_names(model: torch.nn.Module, missing: Sequence[str], unknown: Sequence[str]) -> str:
    return message(
        given=f"a state for a {type(model).__name__} without {shortened(missing) or 'nothing'} "
        f"and with {shortened(unknown) or 'nothing'}",
        why="the model has other parameters",
        allowed="the state of the same model, or of any other with strict=False",
        do="build the model as it was when its state was saved",
    )


def _refuse_others(setup: Setup) -> None:
    """Refuse what a pipeline doesn't go together with.

    Raises:
        NotImplementedError: there is something of this kind.
    """
    layout = setup.parallelism
    others = [f"{name}_size" for name in ("dp_shard", "tp", "cp", "sp") if getattr(layout, f"{name}_size", 1) > 1]
    if setup.fsdp_plugin is not None:
        others.append("FSDP")
    if setup.precision.spec.needs_scaler:
        others.append("mixed_precision='fp16'")
    if setup.ddp_handler is not None:
        others.append("DistributedDataParallelKwargs")
    if setup.dynamo.backend != DynamoBackend.NO:
        others.append("torch.compile")
    if others:
        raise NotImplementedError(
            message(
                given=f"pp_size with {' and '.join(others)}",
                why="a pipeline divides models that are whole on their ranks, in a precision without a scaler",
                allowed="pp_size with dp_replicate_size, and mixed_precision 'no' or 'bf16'",
                do="leave the others out",
            )
        )
