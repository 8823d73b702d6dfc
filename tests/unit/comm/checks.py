"""What every implementation of `Collectives` must do, as functions of one rank; also a script for one process of many.

`test_collectives.py` runs them on one process, on fake worlds and a fake torch_xla; `test_gloo.py` in real processes.
"""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

from accelerate.comm import operations
from accelerate.comm.collectives import FP8, TorchCollectives

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
OTHERS = [torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, *FP8]
SHAPES = [(), (0,), (1,), (3,), (2, 3), (2, 0, 3), (2, 2, 2)]


def values(rank, dtype, shape=(2, 3)):
    """Small numbers, exact in every dtype, which differ between ranks and elements."""
    count = torch.Size(shape).numel()
    start = 1 if dtype is getattr(torch, "float8_e8m0fnu", None) else 0  # it knows powers of two only
    numbers = torch.tensor([2.0 ** ((start + rank + place) % 3) for place in range(count)]).reshape(shape)
    return (numbers > 1) if dtype is torch.bool else numbers.to(dtype)


def same(one, other):
    """Equality of dtype, shape and bytes."""
    assert one.dtype is other.dtype, (one.dtype, other.dtype)
    assert one.shape == other.shape, (one.shape, other.shape)
    wide = torch.complex128 if one.is_complex() else torch.float64
    assert torch.equal(one.cpu().to(wide), other.cpu().to(wide)), (one, other)


def check_all_gather(ranks):
    for dtype in [*FLOATS, *INTEGERS, *OTHERS]:
        for shape in SHAPES:
            mine = values(ranks.rank, dtype, shape)
            gathered = ranks.all_gather(mine)
            assert gathered.shape == (ranks.world_size, *shape)
            for rank, part in enumerate(gathered):
                same(part, values(rank, dtype, shape))
            same(mine, values(ranks.rank, dtype, shape))


def check_all_gather_later(ranks):
    for dtype in (torch.int64, torch.bool):
        asked = [ranks.all_gather_later(values(ranks.rank + number, dtype, (3,))) for number in range(2)]
        ranks.barrier()
        for number in (1, 0):
            for rank, part in enumerate(asked[number]()):
                same(part, values(rank + number, dtype, (3,)))


def check_all_gather_of_odd_layouts(ranks):
    base = torch.arange(12.0).view(3, 4) + 100 * ranks.rank
    for mine in (base.t(), base[:, ::2], base[0, 0].expand(5), base[:, 1], base[0, ::2][:1]):
        gathered = ranks.all_gather(mine)
        same(gathered[ranks.rank], mine.contiguous())
        same(gathered[0], mine - 100 * ranks.rank)
    single = torch.ones(4, dtype=torch.bfloat16)[::2][:1]  # "contiguous", with a stride of 2
    same(ranks.all_gather(single)[-1], torch.ones(1, dtype=torch.bfloat16))
    same(ranks.broadcast(single, ranks.world_size - 1), torch.ones(1, dtype=torch.bfloat16))


def check_all_gather_has_no_gradient(ranks):
    mine = torch.ones(2, requires_grad=True)
    gathered = ranks.all_gather(mine * 2)
    assert not gathered.requires_grad
    gathered.zero_()
    assert mine.tolist() == [1, 1]


def check_all_reduce(ranks):
    everyone = range(ranks.world_size)
    for dtype in [*FLOATS, torch.complex64, *INTEGERS, *FP8[:2]]:
        stacked = torch.stack([values(rank, dtype).to(torch.complex128) for rank in everyone])
        expected = {"sum": stacked.sum(0)}
        if not dtype.is_complex:
            expected |= {"max": stacked.real.amax(0), "min": stacked.real.amin(0)}
        for op, result in expected.items():
            mine = values(ranks.rank, dtype)
            assert ranks.all_reduce(mine, op) is mine
            same(mine, (result if dtype.is_complex else result.real).to(dtype))


def check_mean_keeps_the_dtype(ranks):
    everyone = range(ranks.world_size)
    for dtype in [torch.float32, torch.float64, torch.complex64]:
        mine = values(ranks.rank, dtype)
        ranks.all_reduce(mine, "mean")
        exact = torch.stack([values(rank, torch.complex128) for rank in everyone]).mean(0)
        assert mine.dtype is dtype
        assert torch.allclose(mine.to(torch.complex128), exact)
    for dtype in INTEGERS:
        mine = torch.tensor([100, 1, ranks.rank], dtype=dtype)  # 100 four times is too much for 8 bits
        ranks.all_reduce(mine, "mean")
        half_up = int((ranks.world_size - 1) / 2 + 0.5)
        same(mine, torch.tensor([100, 1, half_up], dtype=dtype))


def check_booleans(ranks):
    first, last = ranks.rank == 0, ranks.rank == ranks.world_size - 1
    lonely = ranks.world_size == 1
    for op, expected in (("sum", [True, True, False]), ("max", [True, True, False]), ("min", [lonely, True, False])):
        mine = torch.tensor([first if last or first else False, True, False])
        ranks.all_reduce(mine, op)
        same(mine, torch.tensor(expected))


def check_all_reduce_of_odd_layouts(ranks):
    for op in ("sum", "mean"):
        for dtype in (torch.float32, torch.int16, torch.int64):
            base = torch.arange(12, dtype=dtype).view(3, 4)
            before = base.clone()
            ranks.all_reduce(base[:, ::2], op)
            factor = ranks.world_size if op == "sum" else 1
            same(base[:, ::2], before[:, ::2] * factor)
            same(base[:, 1::2], before[:, 1::2])


def check_refused_reductions(ranks):
    for tensor, op in ((torch.ones(1, dtype=torch.bool), "mean"), (torch.ones(1, dtype=torch.complex64), "max")):
        with pytest.raises(TypeError, match=str(tensor.dtype)):
            ranks.all_reduce(tensor, op)


def check_broadcast(ranks):
    for source in range(ranks.world_size):
        for dtype in [*FLOATS, *INTEGERS, *OTHERS]:
            for shape in SHAPES:
                mine = values(ranks.rank, dtype, shape)
                assert ranks.broadcast(mine, source) is mine
                same(mine, values(source, dtype, shape))


def check_broadcast_of_odd_layouts(ranks):
    source = ranks.world_size - 1
    base = torch.arange(12.0).view(3, 4) + 100 * ranks.rank
    untouched = base[:, 1::2].clone()
    ranks.broadcast(base[:, ::2], source)
    same(base[:, ::2], torch.arange(12.0).view(3, 4)[:, ::2] + 100 * source)
    same(base[:, 1::2], untouched)
    parameter = torch.nn.Parameter(torch.full((2,), float(ranks.rank)))
    ranks.broadcast(parameter, source)
    assert parameter.tolist() == [source] * 2
    assert parameter.requires_grad


def check_objects(ranks):
    everyone = list(range(ranks.world_size))
    assert ranks.all_gather_object({"rank": ranks.rank}) == [{"rank": rank} for rank in everyone]
    for source in everyone:
        assert ranks.broadcast_object(("from", ranks.rank), source) == ("from", source)
    ranks.barrier()


def check_nested_operations(ranks):
    size = ranks.world_size
    data = {"x": torch.full((2, 3), float(ranks.rank)), "mask": torch.ones(1 + ranks.rank, dtype=torch.bool)}
    padded = operations.pad_across_processes(ranks, data)
    same(padded["mask"], torch.arange(size) <= ranks.rank)
    gathered = operations.gather(ranks, [padded, (torch.tensor(ranks.rank),)])
    assert gathered[0]["x"].tolist() == [[float(rank)] * 3 for rank in range(size) for _ in range(2)]
    assert gathered[0]["mask"].view(size, size).sum(1).tolist() == [rank + 1 for rank in range(size)]
    if size > 1:
        assert gathered[1][0].tolist() == list(range(size))
    operations.broadcast(ranks, [data["x"], torch.tensor(ranks.rank)], from_process=size - 1)
    assert data["x"].unique().tolist() == [size - 1]
    counts = [torch.tensor(ranks.rank), torch.ones(2), torch.ones(2, 1, dtype=torch.long)]
    same(operations.reduce(ranks, counts, "sum")[0], torch.tensor(sum(range(size))))
    assert operations.gather_object(ranks, [ranks.rank]) == list(range(size))


CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("check_")}


def main():
    """Run all checks as one process of a group: `checks.py rank world_size file backend device`."""
    rank, world_size, store, backend, device = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world_size)
    ranks = TorchCollectives(device)
    for name, check in CHECKS.items():
        check(ranks)
        print(name, "passed", flush=True)
    groups = [dist.new_group([0]), dist.new_group(list(range(world_size))[::-1])]
    assert TorchCollectives(device, groups[1]).all_gather_object(rank) == dist.get_process_group_ranks(groups[1])
    if rank:
        with pytest.raises(ValueError, match="not one of them"):
            TorchCollectives(device, groups[0])
    else:
        assert TorchCollectives(device, groups[0]).world_size == 1
    print("groups passed", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
