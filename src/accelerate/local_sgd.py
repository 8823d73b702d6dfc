"""Local SGD: ranks train on their own for a few steps, then average their parameters.

Communication falls from once a step to once every `local_sgd_steps` steps, at the price of ranks that drift apart in
between. Source: Stich, "Local SGD Converges Fast and Communicates Little", 2019 (arXiv:1805.09767).
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from accelerate.base.messages import message
from accelerate.config.enums import DistributedType

if TYPE_CHECKING:
    from accelerate.accelerator import Accelerator


class LocalSGD:
    """Context in which gradients stay local and parameters are averaged every `local_sgd_steps` calls of `step`.

    Args:
        accelerator: the accelerator that prepared `model`.
        model: a prepared model.
        local_sgd_steps: how many steps a rank makes between two averagings.
        enabled: False, or a run of one process, makes the context do nothing.

    Raises:
        NotImplementedError: the model is not trained as plain replicas.
        ValueError: `local_sgd_steps` is below 1.
    """

    def __init__(
        self, accelerator: Accelerator, model: torch.nn.Module, local_sgd_steps: int, enabled: bool = True
    ) -> None:
        if local_sgd_steps < 1:
            raise ValueError(
                message(
                    given=f"local_sgd_steps={local_sgd_steps}",
                    why="parameters are averaged after that many steps",
                    allowed="a whole number from 1 on",
                    do="pass 1 to average after every step",
                )
            )
        kind = accelerator.distributed_type
        if kind is not DistributedType.NO and not kind.name.startswith("MULTI_"):
            raise NotImplementedError(
                message(
                    given=f"LocalSGD under {kind}",
                    why="it averages whole replicas, and the parameters of this model are not replicated",
                    allowed="one process, or data parallel replicas on any kind of device",
                    do="train without LocalSGD, or with plain data parallelism",
                )
            )
        self.accelerator = accelerator
        self.model = model
        self.local_sgd_steps = local_sgd_steps
        self.enabled = enabled and accelerator.use_distributed
        self.num_steps = 0
        self._local = ExitStack()

    def __enter__(self) -> LocalSGD:
        if self.enabled:
            self._local.enter_context(self.accelerator.no_sync(self.model))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._local.close()
        if self.enabled and kind is None:
            self._sync_and_avg_model_params()

    def step(self) -> None:
        """Count one optimizer step; call it after each."""
        self.num_steps += 1
        if self.enabled and self.num_steps % self.local_sgd_steps == 0:
            self._sync_and_avg_model_params()

    @torch.no_grad()
    def _sync_and_avg_model_params(self) -> None:
        """Give every rank the mean of the parameters of all ranks."""
        parameters = list(self.model.parameters())
        means = self.accelerator.reduce([parameter.detach() for parameter in parameters], reduction="mean")
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.copy_(mean)
