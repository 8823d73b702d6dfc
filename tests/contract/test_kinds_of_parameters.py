"""Models whose parameters are not all alike are sharded too: of several dtypes, frozen in parts, quantized."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .sharded import V1, V2, Case, Language, accelerator_for, language, library, local, loss_of, micro_batches

PLUGINS = {"fsdp2": V2, "fsdp1": V1}


def in_bf16(layer: torch.nn.Linear) -> None:
    """Keep and compute a layer in bf16."""
    layer.to(torch.bfloat16)
    layer.register_forward_pre_hook(lambda module, args: (args[0].bfloat16(),))
    layer.register_forward_hook(lambda module, args, output: output.float())


def two_dtypes(frozen: bool) -> Language:
    """Return a model with layers in bf16 in its blocks, frozen or trained."""
    model = language()
    for block in model.layers:
        in_bf16(block.up)
        block.up.requires_grad_(not frozen)
    return model


def adapters() -> Language:
    """Return a frozen model in bf16 with small trained layers in fp32 in its blocks."""
    model = language().requires_grad_(False)
    for block in model.layers:
        for layer in (block.up, block.down):
            in_bf16(layer)
        block.norm2.requires_grad_(True)
    return model


def quantized(kind: str) -> Language:
    """Return a frozen model with quantized layers in its blocks, of which the norms are trained."""
    model = language().requires_grad_(False)
    if kind == "torchao":
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        quantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda module, name: name.endswith("up"))
    else:
        for block in model.layers:
            block.up = of_bitsandbytes(kind, block.up)
    for block in model.layers:
        block.norm2.requires_grad_(True)
    return model


def of_bitsandbytes(kind: str, layer: torch.nn.Linear) -> torch.nn.Module:
    from bitsandbytes import nn

    if kind == "int8":
        new = nn.Linear8bitLt(layer.in_features, layer.out_features, has_fp16_weights=False)
        new.load_state_dict(layer.state_dict())
    else:
        storage = torch.float32 if kind == "nf4, stored as fp32" else torch.uint8
        facts = {"quant_type": "nf4", "quant_storage": storage}
        new = nn.Linear4bit(layer.in_features, layer.out_features, compute_dtype=torch.float32, **facts)
        new.weight = nn.Params4bit(layer.weight.detach().clone(), requires_grad=False, **facts)
        new.bias = layer.bias
    return new.to("cpu").requires_grad_(False)


MODELS = {"trained": (two_dtypes, False), "frozen": (two_dtypes, True), "adapters": (adapters,)}


def trained(case: Case, build: Any, *arguments: Any) -> dict[str, Any]:
    """Train three steps; return the losses, the whole weights and what is whole on this rank."""
    accelerator = accelerator_for(case)
    model = build(*arguments)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for tokens in micro_batches(case, accelerator.process_index, accelerator.num_processes)[:3]:
        loss = loss_of(model, tokens)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    held = sum(local(each).numel() for each in model.parameters() if each.requires_grad)
    return {"losses": losses, "held": held}


def alone(build: Any, *arguments: Any) -> dict[str, Any]:
    """Train the same in one process, with nothing but torch."""
    model = build(*arguments)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1, momentum=0.9)
    losses = []
    for tokens in micro_batches(Case(), 0, 1)[:3]:
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "held": sum(each.numel() for each in model.parameters() if each.requires_grad)}


@pytest.mark.parametrize("plugin", PLUGINS.values(), ids=PLUGINS.keys())
@pytest.mark.parametrize("arguments", MODELS.values(), ids=MODELS.keys())
def test_several_dtypes(pair, plugin, arguments):
    """In bf16 an update is rounded, and so is the mean of gradients: losses within 2e-3."""
    outcomes, expected = pair.run(trained, Case(plugin=plugin), *arguments), alone(*arguments)
    for outcome in outcomes:
        assert outcome["losses"] == pytest.approx(expected["losses"], abs=2e-3)
    assert sum(outcome["held"] for outcome in outcomes) == expected["held"]


@pytest.mark.libraries
@pytest.mark.parametrize("plugin", PLUGINS.values(), ids=PLUGINS.keys())
@pytest.mark.parametrize("kind", ["torchao", "int8", "nf4", "nf4, stored as fp32"])
def test_quantized_weights_are_left_alone(pair, plugin, kind):
    library("torchao" if kind == "torchao" else "bitsandbytes")
    outcomes, expected = pair.run(trained, Case(plugin=plugin), quantized, kind), alone(quantized, kind)
    for outcome in outcomes:
        assert outcome["losses"] == pytest.approx(expected["losses"], abs=1e-4)
    assert sum(outcome["held"] for outcome in outcomes) == expected["held"]
