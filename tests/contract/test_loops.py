"""What a person's loop may do without changing when an update happens: validate, break, iterate several loaders."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from .recipes import build_model, data, optimizer_for


def updates(world_loop, steps=2):
    """Run `world_loop(accelerator, model, optimizer, train, validate)` and return what it returns."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    model = build_model("plain")
    optimizer = optimizer_for(model)
    train = DataLoader(torch.arange(14.0).unsqueeze(1).expand(-1, 4), batch_size=2 // accelerator.num_processes or 1)
    validate = DataLoader(torch.arange(12.0).unsqueeze(1).expand(-1, 4), batch_size=1)
    model, optimizer, train, validate = accelerator.prepare(model, optimizer, train, validate)
    return world_loop(accelerator, model, optimizer, train, validate)


def micro_batch(accelerator, model, optimizer, batch):
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
        return accelerator.sync_gradients


def plain(accelerator, model, optimizer, train, validate):
    return [micro_batch(accelerator, model, optimizer, batch) for batch in train]


def validation_inside(accelerator, model, optimizer, train, validate):
    seen = []
    for batch in train:
        for held_out in validate:
            accelerator.gather_for_metrics(model(held_out))
        seen.append(micro_batch(accelerator, model, optimizer, batch))
    return seen


def validation_broken_off(accelerator, model, optimizer, train, validate):
    seen = []
    for batch in train:
        for _ in validate:
            break
        seen.append(micro_batch(accelerator, model, optimizer, batch))
    return seen


def validation_iterator_kept_open(accelerator, model, optimizer, train, validate):
    seen, held_out = [], iter(validate)
    for batch in train:
        next(held_out, None)
        seen.append(micro_batch(accelerator, model, optimizer, batch))
    return seen


def training_broken_off_before(accelerator, model, optimizer, train, validate):
    for _ in train:
        break
    return plain(accelerator, model, optimizer, train, validate)


def outer_loop_over_another_loader(accelerator, model, optimizer, train, validate):
    for _ in validate:
        seen = plain(accelerator, model, optimizer, train, validate)
    return seen


LOOPS = [
    plain,
    validation_inside,
    validation_broken_off,
    validation_iterator_kept_open,
    training_broken_off_before,
    outer_loop_over_another_loader,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_updates_happen_every_second_batch_and_at_the_end(pair, loop):
    assert pair.run(updates, loop) == [[False, True, False, True, False, True, True]] * 2


def several_micro_batches_of_each_batch(accelerator, model, optimizer, train, validate):
    seen = []
    for batch in train:
        for _ in range(4):
            seen.append(micro_batch(accelerator, model, optimizer, batch))
    return seen


def test_an_inner_loop_of_micro_batches_updates_as_often_at_the_end(pair):
    """Four micro-batches of each batch and four steps: one update per batch, the last batch included."""
    expected = [False, False, False, True] * 7
    assert pair.run(updates, several_micro_batches_of_each_batch, steps=4) == [expected] * 2


def two_models_in_turn():
    """Train two models GAN-style, each with its own optimizer; return who updated when, the batches and the weights."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, critic)]
    loader = DataLoader(data(16), batch_size=4 // accelerator.num_processes)
    generator, critic, *optimizers, loader = accelerator.prepare(generator, critic, *optimizers, loader)
    seen, batches = [], []
    for index, x, _, _ in loader:
        for model, optimizer, sign in zip((critic, generator), reversed(optimizers), (1, -1), strict=True):
            with accelerator.accumulate(model):
                accelerator.backward(sign * critic(generator(x)).mean())
                optimizer.step()
                if accelerator.sync_gradients:
                    for each in optimizers:
                        each.zero_grad()
                seen.append(accelerator.sync_gradients)
        batches.append(accelerator.gather(index).tolist())
    weights = [
        p.detach().clone() for model in (generator, critic) for p in accelerator.unwrap_model(model).parameters()
    ]
    return seen, batches, weights


def test_two_models_count_their_own_micro_batches(world):
    for seen, _, _ in world.run(two_models_in_turn):
        assert seen == [False, False, True, True, False, False, True, True]


def gan_step_by_step():
    """Train two models with two optimizers without accumulation; return the global batches and weights."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    generator, critic, optimizers = gan()
    loader = DataLoader(data(24), batch_size=8 // accelerator.num_processes)
    generator, critic, *optimizers, loader = accelerator.prepare(generator, critic, *optimizers, loader)
    batches = []
    for index, x, _, _ in loader:
        gan_round(generator, critic, optimizers, x, accelerator.backward)
        batches.append(accelerator.gather(index).tolist())
    return batches, [accelerator.unwrap_model(model).state_dict() for model in (generator, critic)]


def gan():
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    return generator, critic, [torch.optim.SGD(model.parameters(), lr=0.1) for model in (generator, critic)]


def gan_round(generator, critic, optimizers, x, backward):
    for optimizer, sign, detach in zip(reversed(optimizers), (1, -1), (True, False), strict=True):
        fake = generator(x)
        backward(sign * critic(fake.detach() if detach else fake).mean())
        optimizer.step()
        for each in optimizers:
            each.zero_grad()


def test_gan_ends_with_the_weights_of_one_process(world):
    (batches, weights), *_ = world.run(gan_step_by_step)
    generator, critic, optimizers = gan()
    for batch in batches:
        gan_round(generator, critic, optimizers, data(24)[torch.tensor(batch)][1], torch.Tensor.backward)
    for found, model in zip(weights, (generator, critic), strict=True):
        for name, weight in model.state_dict().items():
            torch.testing.assert_close(found[name], weight, atol=1e-6, rtol=0)
