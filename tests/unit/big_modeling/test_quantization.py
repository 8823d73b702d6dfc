"""Models are loaded with their linear layers in few bits: which layers, what they compute, and where they are kept."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelerate import dispatch_model, init_empty_weights, load_checkpoint_in_model
from accelerate.big_modeling.quantization_layers import QUANTIZERS
from accelerate.utils import BnbQuantizationConfig, TorchAoQuantizationConfig, has_4bit_bnb_layers
from accelerate.utils.bnb import (
    get_keys_to_not_convert,
    get_parameter_device,
    get_quantized_model_device_map,
    load_and_quantize_model,
    quantize_and_offload_8bit,
    replace_with_bnb_layers,
)

WIDTH = 64
FP32 = {"torch_dtype": torch.float32}
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32, **FP32}
INT8 = {"load_in_8bit": True, **FP32}
TOKENS = torch.tensor([[0, 5, 2, 3]])


class Block(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, dtype=dtype)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False, dtype=dtype)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.down(torch.relu(self.up(value)))


class Model(nn.Module):
    def __init__(self, tied: bool = False, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, WIDTH, dtype=dtype)
        self.blocks = nn.ModuleList([Block(dtype) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH, dtype=dtype)
        self.lm_head = nn.Linear(WIDTH, 10, bias=False, dtype=dtype)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = self.embed(tokens)
        for block in self.blocks:
            value = block(value)
        return self.lm_head(self.norm(value))


QUANTIZED = [f"blocks.{index}.{part}" for index in range(2) for part in ("up", "down")]


@pytest.fixture
def bnb():
    return pytest.importorskip("bitsandbytes", reason="needs the extra `bitsandbytes`")


@pytest.fixture
def torchao():
    return pytest.importorskip("torchao", reason="needs the extra `torchao`")


@pytest.fixture
def saved(tmp_path):
    """A model, and the path of its checkpoint."""
    torch.manual_seed(0)
    model = Model().eval()
    path = tmp_path / "model.safetensors"
    save_file(model.state_dict(), path, metadata={"format": "pt"})
    return model, path


def empty(**options) -> nn.Module:
    with init_empty_weights():
        return Model(**options).eval()


def by_hand(bnb, model: nn.Module, options: dict) -> nn.Module:
    """Quantize a model as the documentation of bitsandbytes does."""
    model = copy.deepcopy(model)
    for name in QUANTIZED:
        linear = model.get_submodule(name)
        size = (linear.in_features, linear.out_features, linear.bias is not None)
        if "load_in_8bit" in options:
            layer = bnb.nn.Linear8bitLt(*size, has_fp16_weights=False, threshold=6.0)
        else:
            layer = bnb.nn.Linear4bit(
                *size, compute_dtype=torch.float32, quant_type="nf4", compress_statistics=options.get("double", False)
            )
        layer.load_state_dict(linear.state_dict())
        model.set_submodule(name, layer)
    return model.to("cpu").eval()


def with_4bit(**more) -> dict:
    return {**NF4, **more}


@pytest.mark.parametrize("options", [INT8, NF4], ids=["int8", "nf4"])
def test_a_checkpoint_is_quantized_as_by_hand(bnb, saved, options) -> None:
    model, path = saved
    wanted = by_hand(bnb, model, options)(TOKENS)
    quantized = load_and_quantize_model(empty(), BnbQuantizationConfig(**options), path)
    kind = bnb.nn.Linear8bitLt if "load_in_8bit" in options else bnb.nn.Linear4bit
    assert [name for name, module in quantized.named_modules() if type(module) is kind] == QUANTIZED
    assert torch.equal(quantized(TOKENS), wanted)
    assert torch.equal(quantized(TOKENS), wanted)
    assert (wanted - model(TOKENS)).abs().max() < 0.3
    assert quantized.blocks[0].up.weight.dtype == (torch.int8 if "load_in_8bit" in options else torch.uint8)
    assert (quantized.is_loaded_in_8bit, quantized.is_loaded_in_4bit) == ("load_in_8bit" in options, options is NF4)
    assert has_4bit_bnb_layers(quantized) is (options is NF4)
    assert quantized.hf_device_map == {"": torch.device("cpu")}


@pytest.mark.parametrize("kind", ["fp4", "nf4"])
@pytest.mark.parametrize("double", [False, True])
def test_kinds_of_four_bits(bnb, saved, kind, double) -> None:
    model, path = saved
    config = BnbQuantizationConfig(**with_4bit(bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=double))
    quantized = load_and_quantize_model(empty(), config, path)
    state = quantized.blocks[0].up.weight.quant_state
    assert (state.quant_type, state.nested) == (kind, double)
    assert (quantized(TOKENS) - model(TOKENS)).abs().max() < 0.6


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_what_is_not_quantized_gets_the_dtype(bnb, tmp_path, stored) -> None:
    path = tmp_path / "model.safetensors"
    save_file(Model(dtype=stored).state_dict(), path, metadata={"format": "pt"})
    config = BnbQuantizationConfig(
        load_in_8bit=True, torch_dtype="bf16", skip_modules=["lm_head", "down"], keep_in_fp32_modules=["norm"]
    )
    quantized = load_and_quantize_model(empty(), config, path)
    dtypes = {name: parameter.dtype for name, parameter in quantized.named_parameters()}
    assert {name for name, dtype in dtypes.items() if dtype == torch.int8} == {
        "blocks.0.up.weight",
        "blocks.1.up.weight",
    }
    assert {name for name, dtype in dtypes.items() if dtype == torch.float32} == {"norm.weight", "norm.bias"}
    assert not any(parameter.requires_grad for name, parameter in quantized.named_parameters() if ".up." in name)


@pytest.mark.parametrize("options", [INT8, NF4], ids=["int8", "nf4"])
def test_layers_on_the_disk_stay_in_few_bits(bnb, saved, tmp_path, options) -> None:
    _, path = saved
    config = BnbQuantizationConfig(**options)
    wanted = load_and_quantize_model(empty(), config, path)(TOKENS)
    where = {"embed": "cpu", "blocks.0": "disk", "blocks.1.up": "disk", "blocks.1.down": "cpu", "norm": "disk"}
    folder = tmp_path / "offload"
    quantized = load_and_quantize_model(
        empty(), config, path, device_map={**where, "lm_head": "cpu"}, offload_folder=folder
    )
    assert quantized.blocks[0].up.weight.is_meta
    assert quantized.blocks[1].up.weight.is_meta
    size = 2 * WIDTH * WIDTH // (1 if options is INT8 else 2)
    assert (folder / "blocks.0.up.weight.dat").stat().st_size == size
    for _ in range(3):
        assert torch.equal(quantized(TOKENS), wanted)
        assert quantized.blocks[0].up.weight.is_meta


def test_a_model_in_memory_is_quantized_as_it_is(bnb, saved, caplog) -> None:
    model, path = saved
    wanted = load_and_quantize_model(empty(), BnbQuantizationConfig(**NF4), path)(TOKENS)
    quantized = load_and_quantize_model(model, BnbQuantizationConfig(**NF4))
    assert "in memory already" in caplog.text
    assert torch.equal(quantized(TOKENS), wanted)


def test_tied_weights_and_the_output_layer_are_left(bnb, tmp_path) -> None:
    plain, tied = Model(), Model(tied=True)
    assert get_keys_to_not_convert(plain) == ["lm_head"]
    assert set(get_keys_to_not_convert(tied)) == {"embed", "lm_head"}
    state = {name: each for name, each in tied.state_dict().items() if name != "lm_head.weight"}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    quantized = load_and_quantize_model(empty(tied=True), BnbQuantizationConfig(**INT8), tmp_path)
    assert quantized.lm_head.weight is quantized.embed.weight
    assert torch.equal(quantized.embed.weight, tied.embed.weight)


def test_plans_count_bits(bnb) -> None:
    model = empty()
    full = sum(each.numel() * 4 for each in model.parameters())
    budget = {"cpu": int(full * 0.6)}
    config = BnbQuantizationConfig(**NF4)
    assert set(get_quantized_model_device_map(model, config, "sequential", budget).values()) == {"cpu"}
    skipping = BnbQuantizationConfig(**with_4bit(skip_modules=["blocks", "lm_head"]))
    assert "disk" in get_quantized_model_device_map(model, skipping, "sequential", budget).values()


def test_layers_are_replaced_and_quantize_when_they_move(bnb) -> None:
    torch.manual_seed(0)
    model = Model().eval()
    wanted = by_hand(bnb, model, INT8)(TOKENS)
    replaced = replace_with_bnb_layers(model, BnbQuantizationConfig(**INT8))
    assert replaced is model
    assert type(model.lm_head) is nn.Linear
    assert model.blocks[0].up.weight.dtype == torch.float32
    model.to("cpu")
    assert model.blocks[0].up.weight.dtype == torch.int8
    assert torch.equal(model(TOKENS), wanted)
    assert get_parameter_device(model) == torch.device("cpu")


def test_a_path_counts_for_the_names_that_are_left(bnb) -> None:
    block = replace_with_bnb_layers(
        Block(torch.float32), BnbQuantizationConfig(**INT8), ["blocks.0.up"], ["blocks", "0"]
    )
    assert type(block.up) is nn.Linear
    assert type(block.down) is bnb.nn.Linear8bitLt


def test_loading_can_write_8_bits_to_the_disk(bnb, saved, tmp_path) -> None:
    model, path = saved
    wanted = by_hand(bnb, model, INT8)(TOKENS)
    with init_empty_weights():
        other = replace_with_bnb_layers(Model().eval(), BnbQuantizationConfig(**INT8))
    where = {"blocks.0": "disk", "blocks.1": "cpu", "embed": "cpu", "norm": "cpu", "lm_head": "cpu"}
    folder = tmp_path / "offload"
    load_checkpoint_in_model(other, path, where, folder, offload_8bit_bnb=True)
    assert (folder / "blocks.0.up.weight.dat").stat().st_size == 2 * WIDTH * WIDTH
    assert (folder / "blocks.0.up.SCB.dat").is_file()
    dispatch_model(other, where, offload_dir=folder)
    for _ in range(2):
        assert torch.equal(other(TOKENS), wanted)


def test_8_bits_for_the_disk_without_such_layers_warn(saved, tmp_path) -> None:
    with pytest.warns(UserWarning, match="offload_8bit_bnb"):
        load_checkpoint_in_model(empty(), saved[1], {"": "disk"}, tmp_path / "offload", offload_8bit_bnb=True)


def test_scales_can_be_given_with_a_weight(bnb, tmp_path) -> None:
    layer = replace_with_bnb_layers(nn.Sequential(nn.Linear(4, 2)), BnbQuantizationConfig(**INT8), [])
    index: dict = {}
    values, scales = torch.ones(2, 4, dtype=torch.int8), torch.ones(2)
    quantize_and_offload_8bit(layer, values, "0.weight", None, tmp_path, index, scales)
    assert index == {"0.weight": {"dtype": "int8", "shape": [2, 4]}, "0.SCB": {"dtype": "float32", "shape": [2]}}
    assert layer[0].weight.is_meta
    assert layer[0].weight.SCB is scales


@pytest.mark.parametrize(("kind", "far"), [("int8_weight_only", 0.1), ("float8_weight_only", 0.5)])
def test_torchao_is_a_second_library(torchao, saved, kind, far) -> None:
    model, path = saved
    quantized = load_and_quantize_model(empty(), TorchAoQuantizationConfig(kind), path)
    wanted = copy.deepcopy(model)
    for name in QUANTIZED:
        from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

        quantize_(wanted.get_submodule(name), (Int8WeightOnlyConfig if "int8" in kind else Float8WeightOnlyConfig)())
    assert torch.equal(quantized(TOKENS), wanted(TOKENS))
    assert 0 < (quantized(TOKENS) - model(TOKENS)).abs().max() < far
    assert type(quantized.lm_head.weight) is nn.Parameter


def test_torchao_takes_a_configuration_of_its_own(torchao, saved) -> None:
    from torchao.quantization import Int8WeightOnlyConfig

    model, path = saved
    quantized = load_and_quantize_model(empty(), TorchAoQuantizationConfig(Int8WeightOnlyConfig()), path)
    assert 0 < (quantized(TOKENS) - model(TOKENS)).abs().max() < 0.1


def test_layers_of_torchao_are_not_brought_in(torchao, saved, tmp_path) -> None:
    where = {"embed": "cpu", "blocks.0": "disk", "blocks.1": "cpu", "norm": "cpu", "lm_head": "cpu"}
    with pytest.raises(ValueError, match=r"blocks\.0\.up, blocks\.0\.down") as refused:
        load_and_quantize_model(
            empty(), TorchAoQuantizationConfig(), saved[1], device_map=where, offload_folder=tmp_path
        )
    assert "skip_modules" in str(refused.value)


def test_an_unknown_type_is_refused_with_the_nearest(torchao) -> None:
    with pytest.raises(ValueError, match="'int8_weight_only'"):
        load_and_quantize_model(Model(), TorchAoQuantizationConfig("int8_weights_only"))


def test_what_torchao_can_not_do_here_says_so(torchao, saved) -> None:
    if torch.accelerator.is_available():
        pytest.skip("the type works on accelerators")
    with pytest.raises(RuntimeError, match="another `quant_type`"):
        load_and_quantize_model(empty(), TorchAoQuantizationConfig("int4_weight_only", torch_dtype="bf16"), saved[1])


@pytest.mark.parametrize(
    ("config", "library"), [(BnbQuantizationConfig(**INT8), "bitsandbytes"), (TorchAoQuantizationConfig(), "torchao")]
)
def test_a_missing_library_names_the_extra(monkeypatch, config, library) -> None:
    home = sys.modules[QUANTIZERS.get(type(config).__name__).__module__]
    monkeypatch.setattr(
        home, "is_bnb_available" if library == "bitsandbytes" else "is_torchao_available", lambda: False
    )
    with pytest.raises(ImportError, match=rf"accelerate\[{library}\]"):
        load_and_quantize_model(Model(), config)


def test_a_model_without_weights_needs_a_checkpoint(bnb) -> None:
    with pytest.raises(RuntimeError, match="weights_location"):
        load_and_quantize_model(empty(), BnbQuantizationConfig(**INT8))


def test_a_checkpoint_without_the_weights_of_a_layer_is_refused(bnb, tmp_path) -> None:
    state = {name: each for name, each in Model().state_dict().items() if "blocks.1.up" not in name}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"blocks\.1\.up"):
        load_and_quantize_model(empty(), BnbQuantizationConfig(**INT8), tmp_path)


def test_the_disk_needs_a_folder(bnb, saved) -> None:
    where = {"embed": "cpu", "blocks": "disk", "norm": "cpu", "lm_head": "cpu"}
    with pytest.raises(ValueError, match="offload_folder="):
        load_and_quantize_model(empty(), BnbQuantizationConfig(**INT8), saved[1], device_map=where)


def test_names_that_lead_nowhere_are_told(bnb, saved) -> None:
    config = BnbQuantizationConfig(**INT8, skip_modules=["lm_haed"])
    with pytest.warns(UserWarning, match="'lm_head' is near"):
        load_and_quantize_model(saved[0], config)


def test_options_of_plans_without_a_plan_are_told(bnb, saved) -> None:
    with pytest.warns(UserWarning, match="max_memory"):
        load_and_quantize_model(saved[0], BnbQuantizationConfig(**INT8), max_memory={"cpu": "1GiB"})


def test_a_model_without_linear_layers_is_told(bnb) -> None:
    with pytest.warns(UserWarning, match="no linear layer"):
        load_and_quantize_model(nn.Sequential(nn.LayerNorm(3)), BnbQuantizationConfig(**INT8))


def test_another_configuration_is_refused() -> None:
    with pytest.raises(TypeError, match="BnbQuantizationConfig"):
        load_and_quantize_model(Model(), {"load_in_8bit": True})


def test_a_quantized_model_can_be_copied_and_pickled(bnb, saved) -> None:
    quantized = load_and_quantize_model(empty(), BnbQuantizationConfig(**INT8), saved[1])
    wanted = quantized(TOKENS)
    assert torch.equal(copy.deepcopy(quantized)(TOKENS), wanted)
    assert torch.equal(pickle.loads(pickle.dumps(quantized))(TOKENS), wanted)
