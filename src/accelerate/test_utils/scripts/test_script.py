"""The self test behind `accelerate test`: does this configuration communicate, deal out data and train as it should?

Every process runs every check, on the processes, device and precision of the launch; the main process reports a
line for each. A check is a function that raises when something is wrong, and another check is another entry of
`CHECKS`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import (
    DataLoaderConfiguration,
    broadcast,
    broadcast_object_list,
    gather_object,
    set_seed,
    synchronize_rng_states,
)

SAMPLES = 96
BATCH = 4
BATCHES = 12
STEPS = 5
#: Largest difference between the weights of one process and of several, after training in a precision.
TOLERANCE = {"no": 1e-5, "bf16": 2e-2, "fp16": 2e-2}


class CheckFailed(AssertionError):
    """What a check has found to be wrong."""


def expect(true: object, text: str) -> None:
    """Fail with `text` unless the condition is true."""
    if not true:
        raise CheckFailed(text)


def process_control(accelerator: Accelerator) -> None:
    """Functions run where they should, and the main process goes first when asked to."""
    ran = []
    accelerator.on_main_process(lambda: ran.append("main"))()
    accelerator.on_last_process(lambda: ran.append("last"))()
    wanted = ["main"] * accelerator.is_main_process + ["last"] * accelerator.is_last_process
    expect(ran == wanted, f"ran {ran}, not {wanted}")
    folder = [tempfile.mkdtemp(prefix="accelerate-test-") if accelerator.is_local_main_process else ""]
    folder = [name for name in gather_object(folder) if name][_machine(accelerator)]
    with accelerator.local_main_process_first():
        if accelerator.is_local_main_process:
            (Path(folder) / "ready").touch()
        expect((Path(folder) / "ready").exists(), "the main process didn't go first")
    accelerator.wait_for_everyone()
    if accelerator.is_local_main_process:
        (Path(folder) / "ready").unlink()
        Path(folder).rmdir()


def _machine(accelerator: Accelerator) -> int:
    """Return the number of this process's machine: how many of them start at or before this rank, less one."""
    starts = gather_object([accelerator.process_index] if accelerator.is_local_main_process else [])
    return sum(start <= accelerator.process_index for start in starts) - 1


def random_numbers(accelerator: Accelerator) -> None:
    """Generators that differ are the same after synchronisation."""
    set_seed(42, device_specific=True)
    generator = torch.Generator()
    generator.manual_seed(accelerator.process_index)
    synchronize_rng_states(["torch", "generator"], generator)
    drawn = gather_object([(torch.rand(3).tolist(), torch.rand(3, generator=generator).tolist())])
    expect(all(one == drawn[0] for one in drawn), f"the processes draw different numbers: {drawn}")


def collectives(accelerator: Accelerator) -> None:
    """Gather, reduce, pad and broadcast give the same on every process."""
    rank, world, device = accelerator.process_index, accelerator.num_processes, accelerator.device
    gathered = accelerator.gather(
        {"rank": torch.tensor([rank], device=device), "even": torch.tensor([rank % 2 == 0], device=device)}
    )
    expect(gathered["rank"].tolist() == list(range(world)), f"gather: {gathered['rank'].tolist()}")
    expect(gathered["even"].dtype is torch.bool, f"gather made bool {gathered['even'].dtype}")
    total = accelerator.reduce(torch.tensor([float(rank)], device=device), reduction="sum").item()
    expect(total == world * (world - 1) / 2, f"reduce: {total}")
    padded = accelerator.pad_across_processes(torch.ones(rank + 1, device=device))
    expect(len(padded) == world, f"pad_across_processes: length {len(padded)}")
    sent = broadcast(torch.tensor([rank], device=device), from_process=world - 1).item()
    expect(sent == world - 1, f"broadcast: {sent}")
    objects = broadcast_object_list([{"rank": rank}])
    expect(objects == [{"rank": 0}], f"broadcast_object_list: {objects}")


def splitting(accelerator: Accelerator) -> None:
    """Every item of a list, of columns and of a tensor goes to exactly one process."""
    items = list(range(2 * accelerator.num_processes + 1))
    with accelerator.split_between_processes(items) as mine:
        expect(gather_object(list(mine)) == items, "a list is not divided exactly")
    with accelerator.split_between_processes({"a": items, "b": items}) as columns:
        expect(columns["a"] == mine and columns["b"] == mine, "columns are divided otherwise than a list")
    with accelerator.split_between_processes(torch.tensor(items)) as part:
        expect(part.tolist() == list(mine), "a tensor is divided otherwise than a list")
    with accelerator.split_between_processes(items, apply_padding=True) as padded:
        expect(len(padded) == 3 if accelerator.num_processes > 1 else True, "padding doesn't make parts equal")


def triggers(accelerator: Accelerator) -> None:
    """A trigger set on one process is seen by all, once."""
    expect(not accelerator.check_trigger(), "a trigger nobody has set is seen")
    if accelerator.is_last_process:
        accelerator.set_trigger()
    expect(accelerator.check_trigger(), "a trigger of the last process is not seen")
    expect(not accelerator.check_trigger(), "a trigger is seen twice")


def data_loaders(accelerator: Accelerator) -> None:
    """Every sample comes exactly once, whatever the lengths, and metrics count each once."""
    for config in loader_configurations():
        accelerator.dataloader_config = config
        for length in (1, 2 * BATCH * accelerator.num_processes, SAMPLES + 1):
            for shuffle in (False, True):
                loader = DataLoader(
                    TensorDataset(torch.arange(length)), batch_size=BATCH * _scale(accelerator), shuffle=shuffle
                )
                loader = accelerator.prepare_data_loader(loader)
                seen = [accelerator.gather_for_metrics(batch).cpu() for (batch,) in loader]
                numbers = torch.cat(seen).tolist()
                where = f"{length} samples, shuffle {shuffle}, {config}"
                expect(sorted(numbers) == list(range(length)), f"{len(numbers)} seen of {where}")
                expect(shuffle or numbers == sorted(numbers), f"order lost for {where}")
    accelerator.dataloader_config = DataLoaderConfiguration()


def loader_configurations() -> Iterator[DataLoaderConfiguration]:
    """Yield the ways in which a loader can be shared out."""
    yield DataLoaderConfiguration()
    yield DataLoaderConfiguration(split_batches=True)
    yield DataLoaderConfiguration(use_seedable_sampler=True)


def _scale(accelerator: Accelerator) -> int:
    """Return by what the batch is larger when it is split over the processes."""
    return accelerator.num_processes if accelerator.split_batches else 1


def training(accelerator: Accelerator) -> None:
    """Several processes end with the weights that one process reaches on the same batches."""
    _compare(accelerator, steps=1)


def accumulation(accelerator: Accelerator) -> None:
    """The same with gradients accumulated over batches, the last window being a short one."""
    _compare(accelerator, steps=STEPS)


def _compare(accelerator: Accelerator, steps: int) -> None:
    """Train twice, with and without `accelerator`, and compare the weights."""
    data = _data(BATCHES * BATCH * accelerator.num_processes)
    alone, prepared = _model().to(accelerator.device), _model()
    _train_alone(alone, data, BATCH * accelerator.num_processes, steps)
    accelerator.gradient_accumulation_steps = steps
    _train(accelerator, prepared, data)
    accelerator.gradient_accumulation_steps = 1
    tolerance = TOLERANCE.get(accelerator.mixed_precision, 1e-1)
    for name, value in accelerator.unwrap_model(prepared).state_dict().items():
        difference = (value.to(accelerator.device) - alone.state_dict()[name]).abs().max().item()
        expect(
            difference <= tolerance,
            f"{name} differs by {difference:.2e} from training on one process (up to {tolerance})",
        )


def _data(samples: int) -> TensorDataset:
    """Return inputs and targets, the same on every process."""
    inputs = torch.randn(samples, 8, generator=torch.Generator().manual_seed(7))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def _model() -> nn.Module:
    """Return a small network with the same weights on every process."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def _train_alone(model: nn.Module, data: TensorDataset, batch_size: int, steps: int) -> None:
    """Train in plain PyTorch, one window of `steps` batches after the other."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    device = next(model.parameters()).device
    batches = list(DataLoader(data, batch_size=batch_size))
    for number, (inputs, targets) in enumerate(batches, start=1):
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        (loss / steps).backward()
        if number % steps == 0 or number == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def _train(accelerator: Accelerator, model: nn.Module, data: TensorDataset) -> None:
    """Train the same with `accelerator`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=BATCH))
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


CHECKS: dict[str, Callable[[Accelerator], None]] = {
    "process control": process_control,
    "random numbers": random_numbers,
    "collective operations": collectives,
    "splitting between processes": splitting,
    "triggers": triggers,
    "data loaders": data_loaders,
    "training": training,
    "training with accumulation": accumulation,
}


def main() -> None:
    """Run every check, and say how each went; the first that fails ends the run."""
    accelerator = Accelerator()
    accelerator.print(
        f"Testing {accelerator.distributed_type.value} with {accelerator.num_processes} process(es) on "
        f"{accelerator.device.type}, mixed precision {accelerator.mixed_precision}"
    )
    for name, check in CHECKS.items():
        try:
            check(accelerator)
        except Exception as error:
            print(f"FAILED  {name}, on process {accelerator.process_index}: {error}", flush=True)
            raise
        accelerator.wait_for_everyone()
        accelerator.print(f"ok      {name}: {str(check.__doc__).splitlines()[0]}", flush=True)
    expect(not GradientState().in_dataloader, "a data loader is still being iterated")
    accelerator.end_training()


if __name__ == "__main__":
    main()
