"""From what a person names to a model on meta: folders, files, configurations, and the cache of the hub."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from accelerate.big_modeling import sources
from accelerate.big_modeling.skeleton import build_skeleton
from accelerate.big_modeling.sources import open_source

WEIGHTS = {
    "lm_head.weight": torch.zeros(16, 4, dtype=torch.bfloat16),
    "model.embed_tokens.weight": torch.zeros(16, 4, dtype=torch.bfloat16),
    "model.norm.weight": torch.zeros(4, dtype=torch.bfloat16),
    **{f"model.layers.{index}.proj.weight": torch.zeros(4, 4, dtype=torch.bfloat16) for index in range(12)},
}
CONFIG = {"model_type": "llama", "hidden_size": 4, "num_hidden_layers": 12, "num_attention_heads": 2}


def write(folder: Path, *, sharded: bool = False, kind: str = "safetensors") -> Path:
    """Write a checkpoint with its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if kind == "bin":
        torch.save(WEIGHTS, folder / "pytorch_model.bin")
    elif sharded:
        names = list(WEIGHTS)
        where = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(names)}
        for file in set(where.values()):
            save_file({name: WEIGHTS[name] for name in names if where[name] == file}, folder / file, {"format": "pt"})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    else:
        save_file(WEIGHTS, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, ""),
        ({}, "model.safetensors"),
        ({"sharded": True}, ""),
        ({"sharded": True}, "model.safetensors.index.json"),
        ({"kind": "bin"}, ""),
        ({"kind": "bin"}, "pytorch_model.bin"),
    ],
    ids=["folder", "file", "sharded folder", "index", "folder of torch", "file of torch"],
)
def test_checkpoints_are_known_by_their_headers(tmp_path: Path, options: dict, named: str) -> None:
    found = open_source(str(write(tmp_path / "tiny", **options) / named))
    tensors = found.model.state_dict()
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        name: each.shape for name, each in WEIGHTS.items()
    }
    assert all(tensor.is_meta and tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    assert found.config == CONFIG
    assert found.no_split == ("Block",)


def test_parts_come_in_the_order_in_which_they_run() -> None:
    model = build_skeleton({name: (tuple(each.shape), each.dtype) for name, each in WEIGHTS.items()})
    assert [name for name, _ in model.named_children()] == ["model", "lm_head"]
    assert [name for name, _ in model.get_submodule("model").named_children()] == ["embed_tokens", "layers", "norm"]
    layers = [name for name, _ in model.get_submodule("model.layers").named_children()]
    assert layers == [str(index) for index in range(12)]


def test_a_configuration_alone_is_built_by_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="builds the model from its configuration")
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 8,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": 10,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for named in (tmp_path, tmp_path / "config.json"):
        found = open_source(str(named))
        assert type(found.model).__name__ == "GPT2LMHeadModel"
        assert all(each.is_meta for each in found.model.parameters())
        assert found.no_split == ("GPT2Block",)
        assert found.config["n_layer"] == 2


def test_without_transformers_a_configuration_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "is_transformers_available", lambda: False)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ImportError, match="pip install transformers"):
        open_source(str(tmp_path))


def test_a_model_of_timm_needs_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "is_timm_available", lambda: False)
    for name, library in (("timm/resnet18.a1_in1k", None), ("resnet18", "timm")):
        with pytest.raises(ImportError, match="pip install timm"):
            open_source(name, library=library)


def test_a_model_in_the_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = "0" * 40
    repository = tmp_path / "models--someone--tiny"
    write(repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(sources, "_from_hub", lambda *_: pytest.fail("asked the hub"))
    found = open_source("someone/tiny")
    assert found.title == "someone/tiny"
    assert found.model.state_dict().keys() == WEIGHTS.keys()


def test_offline_an_unknown_id_is_refused_in_four_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"(?s)Given: model 'no/such-model'.*the hub says: .*without a network"):
        open_source("no/such-model")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("notes.txt", "hello", "neither a checkpoint"),
        ("config.json", "{", "can't be read as JSON"),
        ("config.json", "[1]", "holds no settings"),
        ("model.safetensors", "short", "does not fit into"),
        ("empty/readme", "", "neither weights"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, name: str, content: str, why: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    with pytest.raises(ValueError, match=why):
        open_source(str(file.parent if file.name == "readme" else file))


def test_checkpoints_run_no_code_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert open_source(str(write(tmp_path))).model.state_dict().keys() == WEIGHTS.keys()
