"""Plans of models as transformers builds them from their configurations, on meta, and what each plan costs.

Runs under either library: the maps come from its public functions, and are judged by what is written here, which knows
torch only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import warnings
from pathlib import Path

import torch
import transformers

from accelerate import infer_auto_device_map
from accelerate.utils import get_balanced_memory

#: Model -> class and what differs from the defaults of its configuration.
MODELS = {
    "llama-7b": ("LlamaForCausalLM", {}),
    "llama-70b": (
        "LlamaForCausalLM",
        {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    ),
    "gpt2-xl": ("GPT2LMHeadModel", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "t5-3b": (
        "T5ForConditionalGeneration",
        {"d_model": 1024, "d_ff": 16384, "d_kv": 128, "num_heads": 32, "num_layers": 24},
    ),
    "bert-large": (
        "BertForMaskedLM",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
    ),
    "mixtral-8x7b": ("MixtralForCausalLM", {}),
    "opt-6.7b": (
        "OPTForCausalLM",
        {
            "hidden_size": 4096,
            "ffn_dim": 16384,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "word_embed_proj_dim": 4096,
        },
    ),
    "bloom-7b": ("BloomForCausalLM", {"hidden_size": 4096, "n_layer": 30, "n_head": 32}),
    "gpt-neox-20b": ("GPTNeoXForCausalLM", {}),
    "gemma2-9b": ("Gemma2ForCausalLM", {"hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42}),
    "bart-large": ("BartForConditionalGeneration", {}),
    "whisper-large": (
        "WhisperForConditionalGeneration",
        {
            "d_model": 1280,
            "encoder_layers": 32,
            "decoder_layers": 32,
            "encoder_ffn_dim": 5120,
            "decoder_ffn_dim": 5120,
            "encoder_attention_heads": 20,
            "decoder_attention_heads": 20,
        },
    ),
    "vit-huge": (
        "ViTForImageClassification",
        {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16},
    ),
    "mamba-2.8b": ("MambaForCausalLM", {"hidden_size": 2560, "num_hidden_layers": 64}),
}

#: Budget -> parts of the model's size by device, whether they are balanced first, and other arguments.
BUDGETS = {
    "one 60 %": ({0: 0.6, "cpu": 2.0}, None, {}),
    "one 30 %, cpu 40 %": ({0: 0.3, "cpu": 0.4}, None, {}),
    "one 100 %": ({0: 1.0, "cpu": 2.0}, None, {}),
    "two 45 %": ({0: 0.45, 1: 0.45, "cpu": 2.0}, None, {}),
    "four 30 %": ({0: 0.3, 1: 0.3, 2: 0.3, 3: 0.3, "cpu": 2.0}, None, {}),
    "four 30 %, may be split": ({0: 0.3, 1: 0.3, 2: 0.3, 3: 0.3, "cpu": 2.0}, None, {"no_split_module_classes": None}),
    "10 %, 50 %, 20 %": ({0: 0.1, 1: 0.5, 2: 0.2, "cpu": 2.0}, None, {}),
    "1 %, 120 %": ({0: 0.01, 1: 1.2, "cpu": 2.0}, None, {}),
    "2 %, 60 %, fallback": ({0: 0.02, 1: 0.6, "cpu": 2.0}, None, {"fallback_allocation": True}),
    "four 50 %, balanced": ({0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5, "cpu": 2.0}, "balanced", {}),
    "three 60 %, little on the first": ({0: 0.6, 1: 0.6, 2: 0.6, "cpu": 2.0}, "low_zero", {}),
    "two 40 % in fp16": ({0: 0.2, 1: 0.2, "cpu": 2.0}, None, {"dtype": torch.float16}),
    "cpu 50 %": ({"cpu": 0.5}, None, {}),
}

Tensors = list[tuple[str, torch.Tensor]]


def build(name: str) -> torch.nn.Module:
    """Return a model on meta."""
    architecture, changes = MODELS[name]
    factory = getattr(transformers, architecture)
    with torch.device("meta"):
        return factory(factory.config_class(**changes)).eval()


def tensors_of(model: torch.nn.Module) -> Tensors:
    """Return every parameter, and every buffer that is saved, under each of its names."""
    kept = set(model.state_dict())
    buffers = [each for each in model.named_buffers(remove_duplicate=False) if each[0] in kept]
    return [*model.named_parameters(remove_duplicate=False), *buffers]


def place_of(name: str, device_map: dict) -> int | str | None:
    """Return where a map puts what is called `name`; None where it says nothing."""
    while name not in device_map and name:
        name = name.rpartition(".")[0]
    return device_map.get(name)


def judge(model: torch.nn.Module, device_map: dict, budget: dict, dtype: torch.dtype | None) -> dict[str, float]:
    """Return what is bad about a plan, from the worst, in bytes and in numbers.

    `uncovered`: names that the map says nothing about. `overflow`: bytes over a budget, where the first accelerator (or
    the CPU, without one) also has to hold the largest layer that is brought in. `disk`: bytes that are read in every
    forward. `offloaded`: bytes that no accelerator holds, and which go over the link in every forward. `crossings`: how
    often a forward changes the device.
    """
    used: dict = dict.fromkeys(budget, 0.0)
    seen, leaves = set(), {}
    uncovered = 0
    main = next((device for device in device_map.values() if device not in ("cpu", "disk")), "cpu")
    held = {"disk"} if main == "cpu" else {"cpu", "disk"}
    for name, tensor in tensors_of(model):
        device = place_of(name, device_map)
        if device is None:
            uncovered += 1
        elif (id(tensor), device) not in seen:
            seen.add((id(tensor), device))
            width = tensor.element_size() if dtype is None else min(tensor.element_size(), dtype.itemsize)
            size = tensor.numel() * (width if tensor.is_floating_point() else tensor.element_size())
            used[device] = used.get(device, 0) + size
            leaves.setdefault((name.rpartition(".")[0], device), []).append(size)
    brought = max((sum(sizes) for (_, device), sizes in leaves.items() if device in held), default=0)
    over = sum(
        max(0, size + (brought if device == main else 0) - budget[device])
        for device, size in used.items()
        if device in budget
    )
    runs = [main if device in held else device for _, device in leaves]
    return {
        "uncovered": uncovered,
        "overflow": over,
        "disk": used.get("disk", 0),
        "offloaded": sum(used.get(device, 0) for device in held),
        "crossings": sum(before != after for before, after in itertools.pairwise(runs)),
    }


def plan(model: torch.nn.Module, row: str) -> dict[str, float]:
    """Plan one model for one budget, and judge the plan."""
    parts, balance, options = BUDGETS[row]
    size = sum({id(tensor): tensor.numel() * tensor.element_size() for _, tensor in tensors_of(model)}.values())
    budget = {device: int(part * size) for device, part in parts.items()}
    options = {"no_split_module_classes": getattr(model, "_no_split_modules", None), **options}
    shares = dict(budget)
    if balance:
        shares = get_balanced_memory(
            model, dict(budget), options["no_split_module_classes"], low_zero=balance == "low_zero"
        )
    device_map = infer_auto_device_map(model, dict(shares), **options)
    return judge(model, device_map, budget, options.get("dtype"))


def compare() -> dict[str, dict[str, float]]:
    """Return the judgement of every plan: "model, budget" -> figures."""
    found = {}
    for name in MODELS:
        model = build(name)
        for row in BUDGETS:
            try:
                found[f"{name}, {row}"] = plan(model, row)
            except Exception as error:  # which the other library may not raise
                found[f"{name}, {row}"] = {"error": str(error)}
    return found


def main() -> None:
    """Plan, and write what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    Path(args.result).write_text(json.dumps(compare()))


if __name__ == "__main__":
    main()
