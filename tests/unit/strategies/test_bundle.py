"""The arguments of `prepare`, sorted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accelerate.strategies.bundle import Bundle, kind_of, linked_optimizers


def objects():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "data_loader": DataLoader([1]),
        "other": "text",
    }


def test_each_kind_is_recognised():
    assert {kind: kind_of(value) for kind, value in objects().items()} == {kind: kind for kind in objects()}


def test_plateau_schedulers_are_schedulers():
    optimizer = objects()["optimizer"]
    assert kind_of(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)) == "scheduler"


def test_results_come_back_in_order_with_what_they_became():
    mine = objects()
    bundle = Bundle.of(list(reversed(mine.values())))
    for slot in bundle.of_kind("model", "optimizer"):
        slot.value = slot.kind.upper()
    assert bundle.results() == ("text", mine["data_loader"], mine["scheduler"], "OPTIMIZER", "MODEL")
    assert bundle.models == ["MODEL"]
    assert bundle.schedulers == [mine["scheduler"]]


def test_one_object_comes_back_alone():
    assert Bundle.of([7]).results() == 7


def test_device_placement_of_another_length_is_refused():
    with pytest.raises(ValueError, match="device_placement with 1 entries for 2 objects"):
        Bundle.of([1, 2], [True])


def test_device_placement_goes_with_its_object():
    assert [slot.device_placement for slot in Bundle.of([1, 2], [True, None]).slots] == [True, None]


class Prepared:
    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_a_scheduler_is_linked_to_its_own_optimizer():
    mine, other = objects(), objects()
    prepared = [Prepared(other["optimizer"]), Prepared(mine["optimizer"])]
    assert linked_optimizers(mine["scheduler"], prepared) == [prepared[1]]


def test_a_scheduler_built_on_the_prepared_optimizer_is_linked_to_it():
    class Scheduler:
        optimizer = Prepared(None)

    assert linked_optimizers(Scheduler(), [Scheduler.optimizer]) == [Scheduler.optimizer]


def test_a_scheduler_that_names_no_optimizer_follows_all_of_them_live():
    live: list = []
    assert linked_optimizers(object(), live) is live


def test_a_scheduler_without_its_optimizer_is_refused():
    with pytest.raises(ValueError, match="a StepLR whose SGD is not prepared"):
        linked_optimizers(objects()["scheduler"], [Prepared(objects()["optimizer"])])
