"""transformers places, offloads, generates with and saves models through this library."""

from __future__ import annotations

import inspect

import pytest
import torch

from accelerate import PartialState, cpu_offload, dispatch_model, prepare_pippy
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from tests.contract.world import World

transformers = pytest.importorskip("transformers", reason="needs transformers")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
TOKENS = torch.tensor([[3, 1, 4, 1, 5]])
WHERE = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "disk"}
WHERE |= {"model.rotary_emb": "cpu", "lm_head": "disk"}


def llama(**options):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=37, num_hidden_layers=2, max_position_embeddings=32, **sizes, **options
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def saved(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


def logits(model, tokens=TOKENS) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens).logits


def test_a_pretrained_model_is_placed_and_offloaded(saved, tmp_path) -> None:
    model, path = saved
    placed = transformers.AutoModelForCausalLM.from_pretrained(path, device_map=WHERE, offload_folder=tmp_path / "off")
    assert placed.lm_head.weight.is_meta
    assert placed.hf_device_map["model.layers.1"] == "disk"
    torch.testing.assert_close(logits(placed), logits(model))
    torch.testing.assert_close(logits(placed), logits(model))


def test_text_is_generated_by_an_offloaded_model(saved, tmp_path) -> None:
    model, path = saved
    placed = transformers.AutoModelForCausalLM.from_pretrained(path, device_map=WHERE, offload_folder=tmp_path / "off")
    wanted = model.generate(TOKENS, max_new_tokens=6, do_sample=False)
    assert torch.equal(placed.generate(TOKENS, max_new_tokens=6, do_sample=False), wanted)


def test_auto_maps_are_planned_here(saved, tmp_path) -> None:
    model, path = saved
    placed = transformers.AutoModelForCausalLM.from_pretrained(
        path, device_map="auto", max_memory={"cpu": 30_000}, offload_folder=tmp_path / "off"
    )
    assert "disk" in placed.hf_device_map.values()
    torch.testing.assert_close(logits(placed), logits(model))


def test_an_offloaded_model_is_saved_whole(saved, tmp_path) -> None:
    model, path = saved
    placed = transformers.AutoModelForCausalLM.from_pretrained(path, device_map=WHERE, offload_folder=tmp_path / "off")
    placed.save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    torch.testing.assert_close(logits(again), logits(model))


def test_a_hook_is_taken_over_by_larger_embeddings() -> None:
    model = dispatch_model(llama(), {"model": "cpu", "lm_head": "cpu"}, force_hooks=True)
    model.resize_token_embeddings(40)
    assert hasattr(model.model.embed_tokens, "_hf_hook")
    assert logits(model).shape[-1] == 40


def test_a_hook_is_rebuilt_from_its_attributes_for_a_replaced_module() -> None:
    model = llama()
    wanted = logits(model)
    cpu_offload(model, "cpu")
    hook = model.model.layers[0].mlp.up_proj._hf_hook
    parameters = inspect.signature(AlignDevicesHook.__init__).parameters
    kept = {name: value for name, value in hook.__dict__.items() if name in parameters}
    replaced = torch.nn.Linear(32, 48, bias=False, device="meta")
    model.model.layers[0].mlp.up_proj = add_hook_to_module(replaced, AlignDevicesHook(**kept))
    torch.testing.assert_close(logits(model), wanted)


@pytest.mark.parametrize("four", [False, True], ids=["int8", "nf4"])
def test_transformers_quantizes_onto_a_map(saved, four) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra `bitsandbytes`")
    model, path = saved
    bits = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"} if four else {"load_in_8bit": True}
    quantized = transformers.AutoModelForCausalLM.from_pretrained(
        path, device_map={"": "cpu"}, quantization_config=transformers.BitsAndBytesConfig(**bits)
    )
    assert (logits(quantized).float() - logits(model)).abs().max() < 0.2


def build() -> str:
    return type(llama()).__name__


def piped() -> tuple[list[str], torch.Tensor]:
    import warnings

    warnings.simplefilter("ignore")
    PartialState(cpu=True)
    tokens = torch.arange(20).reshape(4, 5)
    model = prepare_pippy(llama(), example_args=(tokens,), example_kwargs={"use_cache": False}, gather_output=True)
    return model.hf_split_points, model(tokens + 1, use_cache=False).logits


def test_a_language_model_runs_as_a_pipeline() -> None:
    world = World(2)
    try:
        world.run(build)  # starting and importing take most of the time; each call has a limit of its own
        ranks = world.run(piped)
    finally:
        world.close()
    wanted = logits(llama(), torch.arange(20).reshape(4, 5) + 1)
    for points, found in ranks:
        assert points == ["model.layers.1"]
        torch.testing.assert_close(found, wanted)
