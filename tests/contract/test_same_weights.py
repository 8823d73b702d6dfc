"""N processes end with the weights of one process, for the same global batches."""

from __future__ import annotations

import pytest
import torch

from .recipes import Recipe, reference, train

RECIPES = {
    "plain": Recipe(),
    "ragged last batch": Recipe(length=37),
    "accumulation": Recipe(steps=3),
    "accumulation, short last window": Recipe(length=37, steps=3),
    "accumulation, short last window scaled": Recipe(length=37, steps=3, scale_short_window=True),
    "clipping": Recipe(clip=0.05),
    "clipping with accumulation": Recipe(clip=0.05, steps=3),
    "tied weights": Recipe(model="tied"),
    "frozen backbone": Recipe(model="frozen"),
    "scheduler per step": Recipe(schedule="step"),
    "scheduler per step with accumulation": Recipe(schedule="step", steps=3),
    "scheduler per epoch": Recipe(schedule="epoch", epochs=4),
    "weighted by items": Recipe(weighted=True),
    "weighted by items with accumulation": Recipe(weighted=True, steps=3, length=37),
    "weighted by items, clipped": Recipe(weighted=True, steps=2, clip=0.05),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_weights_equal_those_of_one_process(world, recipe):
    """fp32: equal within 1e-6, the bound of another order of summation."""
    outcomes = world.run(train, recipe)
    expected = reference(recipe, outcomes[0].batches)
    for outcome in outcomes:
        assert outcome.batches == outcomes[0].batches
        assert outcome.rates == pytest.approx(expected.rates, abs=1e-12)
        for name, weight in expected.weights.items():
            torch.testing.assert_close(outcome.weights[name], weight, atol=1e-6, rtol=0)


def test_bf16_is_close_to_one_process(world):
    """bf16 keeps 8 bits of mantissa: after ten updates the weights agree to 2e-2."""
    recipe = Recipe(precision="bf16")
    outcomes = world.run(train, recipe)
    expected = reference(recipe, outcomes[0].batches)
    for name, weight in expected.weights.items():
        torch.testing.assert_close(outcomes[0].weights[name], weight, atol=2e-2, rtol=0)
        assert weight.dtype == outcomes[0].weights[name].dtype == torch.float32


def test_every_sample_of_the_data_is_trained_on(world):
    outcome = world.run(train, Recipe(length=37, epochs=1))[0]
    assert {index for batch in outcome.batches for index in batch} == set(range(37))
