from __future__ import annotations

import base64
import json

import pytest

from accelerate.config.deepspeed_config import HfDeepSpeedConfig

CONFIG = {
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "overlap_comm": False, "bucket": None},
    "train_batch_size": "auto",
}


def encoded(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize("way", ["dictionary", "path", "text of a path", "base64", "text"])
def test_a_configuration_comes_in_any_form(tmp_path, way):
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(CONFIG))
    given = {
        "dictionary": CONFIG,
        "path": path,
        "text of a path": str(path),
        "base64": encoded(CONFIG),
        "text": json.dumps(CONFIG),
    }[way]
    config = HfDeepSpeedConfig(given)
    assert config.config == CONFIG
    assert config.config is not CONFIG
    assert config.is_zero3()
    assert not config.is_zero2()
    assert config.is_offload()


@pytest.mark.parametrize(
    ("key", "value", "true", "false"),
    [
        ("zero_optimization.stage", 3, True, False),
        ("zero_optimization.offload_param.device", "cpu", True, False),
        ("zero_optimization.overlap_comm", False, False, True),
        ("zero_optimization.bucket", None, False, False),
        ("zero_optimization.missing", "default", False, False),
        ("missing.stage", "default", False, False),
        ("train_batch_size", "auto", True, False),
        ("train_batch_size.below", "default", False, False),
    ],
)
def test_values_are_found_by_dotted_keys(key, value, true, false):
    config = HfDeepSpeedConfig(CONFIG)
    assert config.get_value(key, "default") == value
    assert (config.is_true(key), config.is_false(key)) == (true, false)


def test_the_section_of_a_key_can_be_changed():
    config = HfDeepSpeedConfig(CONFIG)
    section, name = config.find_config_node("zero_optimization.stage")
    section[name] = 2
    config.set_stage_and_offload()
    assert config.is_zero2()
    assert config.find_config_node("missing.stage") == (None, "stage")
    assert CONFIG["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize(
    ("section", "offloaded"),
    [
        (None, False),
        ({"stage": 2, "offload_optimizer": {"device": "nvme"}}, True),
        ({"stage": 2, "offload_optimizer": {"device": "none"}}, False),
        ({"stage": 1, "offload_optimizer": {"device": "cpu"}}, False),
        ({"stage": 3}, False),
    ],
)
def test_what_counts_as_offloading(section, offloaded):
    assert HfDeepSpeedConfig({} if section is None else {"zero_optimization": section}).is_offload() == offloaded


def test_without_a_section_for_zero_there_is_no_stage():
    config = HfDeepSpeedConfig({})
    assert (config._stage, config.is_zero2(), config.is_zero3()) == (-1, False, False)


def test_keys_are_removed_with_what_is_under_them():
    config = HfDeepSpeedConfig(CONFIG)
    config.del_config_sub_tree("zero_optimization.offload_param")
    assert "offload_param" not in config.config["zero_optimization"]
    config.del_config_sub_tree("zero_optimization.offload_param")
    with pytest.raises(ValueError, match=r"look at what there is: stage, overlap_comm, bucket"):
        config.del_config_sub_tree("zero_optimization.offload_param", must_exist=True)
    with pytest.raises(ValueError, match=r"look at what there is: zero_optimization, train_batch_size"):
        config.del_config_sub_tree("missing.stage", must_exist=True)


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        ("no/such/file.json", ValueError, "there is no such file, and it isn't base64"),
        ("AAAA", ValueError, "it isn't JSON"),
        (encoded([1]), ValueError, "it holds a list, not settings by name"),
        (5, TypeError, "int"),
    ],
)
def test_what_is_no_configuration_is_refused(given, kind, why):
    with pytest.raises(kind, match=why):
        HfDeepSpeedConfig(given)


def test_a_text_may_be_longer_than_a_path_can_be():
    config = HfDeepSpeedConfig(encoded({"note": "x" * 10_000}))
    assert len(config.get_value("note")) == 10_000
