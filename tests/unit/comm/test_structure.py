from __future__ import annotations

from collections import namedtuple

import pytest
import torch

from accelerate.comm import structure
from accelerate.comm.collectives import Alone
from accelerate.comm.fake import FakeWorld
from accelerate.comm.structure import TensorInformation

Pair = namedtuple("Pair", ["x", "y"])
DATA = {"a": torch.ones(2, 3), "b": Pair(torch.tensor(1, dtype=torch.int8), None), "c": [3, torch.ones(0, 2)]}


def test_structure_round_trip():
    described = structure.get_data_structure(DATA)
    assert described["a"] == TensorInformation(torch.Size([2, 3]), torch.float32)
    assert structure.is_tensor_information(described["b"].x)
    assert not structure.is_tensor_information(described["b"].y)
    made = structure.initialize_tensors(described)
    assert structure.get_data_structure(made) == described
    assert made["b"].x.shape == ()


def test_get_shape():
    assert structure.get_shape(DATA) == {"a": [2, 3], "b": Pair([], None), "c": [3, [0, 2]]}


def test_dtype_numbers():
    assert structure.TENSOR_TYPE_TO_INT[torch.float32] == 1
    assert structure.TENSOR_INT_TO_DTYPE[10] is torch.bool
    assert len(structure.TENSOR_INT_TO_DTYPE) == 10


@pytest.mark.parametrize("owner", [0, 2])
def test_a_tensor_of_one_rank_reaches_all(owner):
    def share(ranks):
        tensor = torch.arange(6).view(2, 3) if ranks.rank == owner else None
        sizes, code = structure.gather_tensor_shape(ranks, tensor)
        return sizes.tolist(), code, structure.copy_tensor_to_devices(ranks, tensor).tolist()

    assert FakeWorld(3).run(share) == [([[2], [3]], 9, [[0, 1, 2], [3, 4, 5]])] * 3


@pytest.mark.parametrize(("owners", "text"), [([], "no rank"), ([0, 1], r"ranks \[0, 1\]")])
def test_not_one_owner(owners, text):
    def share(ranks):
        with pytest.raises(ValueError, match=text):
            structure.copy_tensor_to_devices(ranks, torch.ones(1) if ranks.rank in owners else None)

    FakeWorld(2).run(share)


def test_one_process():
    assert structure.copy_tensor_to_devices(Alone(), torch.ones(2)).tolist() == [1, 1]
