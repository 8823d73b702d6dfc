"""peft puts adapters on dispatched and offloaded models, merges them there, and loads them with an index."""

from __future__ import annotations

import pytest
import torch

from accelerate import dispatch_model
from accelerate.utils import BnbQuantizationConfig, load_and_quantize_model

transformers = pytest.importorskip("transformers", reason="needs transformers")
peft = pytest.importorskip("peft", reason="needs peft")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
TOKENS = torch.tensor([[3, 1, 4, 1, 5]])
WHERE = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu"}
WHERE |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}


def llama():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=37, num_hidden_layers=2, max_position_embeddings=32, **sizes)
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def adapted(model):
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    return peft.get_peft_model(model, config).eval()


def offloaded(folder):
    """Return an adapted model of which half of the base is on the disk, and the adapters are not."""
    model = adapted(llama())
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    where = {name: "disk" if "layers.1" in name and "lora" not in name else "cpu" for name in names}
    return dispatch_model(model, where, offload_dir=folder)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


def test_an_adapter_on_an_offloaded_model(tmp_path) -> None:
    wanted = logits(adapted(llama()))
    model = offloaded(tmp_path)
    assert any(each.is_meta for each in model.parameters())
    torch.testing.assert_close(logits(model), wanted)


def test_an_adapter_is_trained_on_an_offloaded_model(tmp_path) -> None:
    def gradients(model):
        model.train()
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        return {name: each.grad for name, each in model.named_parameters() if each.requires_grad}

    wanted, found = gradients(adapted(llama())), gradients(offloaded(tmp_path))
    assert wanted.keys() == found.keys()
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, msg=name)


def test_an_adapter_is_merged_into_offloaded_layers(tmp_path) -> None:
    wanted = logits(adapted(llama()))
    torch.testing.assert_close(logits(offloaded(tmp_path).merge_and_unload()), wanted)


def test_an_adapter_is_loaded_with_the_index_of_an_offloaded_model(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # peft writes beside the checkpoint, by a path that begins here
    plain = adapted(llama())
    wanted = logits(plain)
    plain.save_pretrained(tmp_path / "adapter")
    llama().save_pretrained(tmp_path / "models--base")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "models--base", device_map=WHERE, offload_folder=tmp_path / "offload"
    )
    index = model.model.layers[1].mlp.up_proj._hf_hook.weights_map.dataset.index
    loaded = peft.PeftModel.from_pretrained(
        model, tmp_path / "adapter", max_memory={"cpu": 60_000}, offload_index=dict(index)
    ).eval()
    assert "disk" in loaded.hf_device_map.values()
    torch.testing.assert_close(logits(loaded), wanted)


def test_an_adapter_on_a_model_in_four_bits(tmp_path) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra `bitsandbytes`")
    config = BnbQuantizationConfig(load_in_4bit=True, torch_dtype="fp32", bnb_4bit_compute_dtype="fp32")
    model = adapted(load_and_quantize_model(llama(), config))
    assert type(model.base_model.model.model.layers[0].self_attn.q_proj).__module__ == "peft.tuners.lora.bnb"
    model.train()
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    assert all(each.grad is not None for each in model.parameters() if each.requires_grad)
