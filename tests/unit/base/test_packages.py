"""The table of optional packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

from accelerate.base import packages
from accelerate.base.environ import reading

# What a machine has installed: module -> (distribution, version).
Installed = dict[str, tuple[str, str]]


@pytest.fixture
def install(monkeypatch):
    """Return a function that makes the machine have just these packages."""

    def install(installed: Installed) -> None:
        versions = dict(installed.values())

        def version(name: str) -> str:
            if name not in versions:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in installed else None)
        monkeypatch.setattr(importlib.metadata, "metadata", version)
        monkeypatch.setattr(importlib.metadata, "version", version)

    return install


ROWS: list[tuple[str, Installed, bool]] = [
    ("wandb", {}, False),
    ("wandb", {"wandb": ("wandb", "0.1")}, True),
    ("wandb", {"wandb": ("another", "0.1")}, False),
    ("tensorboard", {"tensorboardX": ("tensorboardX", "2.0")}, True),
    ("mlflow", {"mlflow": ("mlflow-skinny", "2.0")}, True),
    ("pynvml", {"pynvml": ("nvidia-ml-py", "12.0")}, True),
    ("msamp", {"msamp": ("ms-amp", "0.4")}, True),
    ("transformer_engine", {"transformer_engine": ("transformer-engine", "2.0")}, True),
    ("aim", {"aim": ("aim", "3.9")}, True),
    ("aim", {"aim": ("aim", "4.0.0")}, False),
    ("4bit_bnb", {"bitsandbytes": ("bitsandbytes", "0.38.1")}, False),
    ("4bit_bnb", {"bitsandbytes": ("bitsandbytes", "0.39.0")}, True),
    ("8bit_bnb", {"bitsandbytes": ("bitsandbytes", "0.37.2")}, True),
    ("torchao", {"torchao": ("torchao", "0.6.0")}, False),
    ("torchao", {"torchao": ("torchao", "0.6.1")}, True),
    ("torchdata", {"torchdata": ("torchdata", "0.1")}, True),
    ("torchdata_stateful_dataloader", {"torchdata": ("torchdata", "0.7.1")}, False),
    ("torchdata_stateful_dataloader", {"torchdata": ("torchdata", "0.8.0")}, True),
]


@pytest.mark.parametrize(("name", "installed", "available"), ROWS)
def test_a_row_of_the_table(install, name, installed, available):
    install(installed)
    assert getattr(packages, f"is_{name}_available")() is available


@pytest.mark.parametrize("name", packages.PACKAGES)
def test_every_row_has_a_function_that_says_what_it_asks(name):
    check = getattr(packages, f"is_{name}_available")
    assert check.__name__ == f"is_{name}_available"
    assert check.__doc__.startswith("Whether ")
    assert check.__doc__.endswith(" is installed.")
    assert isinstance(check(), bool)


def test_limits_on_versions_are_documented():
    assert packages.is_aim_available.__doc__ == "Whether aim below 4.0.0 is installed."
    assert packages.is_mlflow_available.__doc__ == "Whether mlflow or mlflow-skinny is installed."
    assert packages.is_torchao_available.__doc__ == "Whether torchao at least 0.6.1 is installed."


@pytest.mark.parametrize(
    ("module", "distribution", "available"), [("yaml", "pyyaml", True), ("yaml", None, False), ("os", None, False)]
)
def test_a_module_needs_the_metadata_of_its_distribution(module, distribution, available):
    assert packages._is_package_available(module, distribution) is available


@pytest.mark.parametrize(("minimum", "available"), [(None, True), ("0.41.0", True), ("0.43.0", False)])
def test_bnb_of_a_version(install, minimum, available):
    install({"bitsandbytes": ("bitsandbytes", "0.42.0")})
    assert packages.is_bnb_available(min_version=minimum) is available


def test_bnb_on_several_backends(install, monkeypatch):
    install({})
    assert not packages.is_bitsandbytes_multi_backend_available()
    install({"bitsandbytes": ("bitsandbytes", "0.45.0")})
    for features, available in [({"multi_backend"}, True), (set(), False)]:
        module = type("bitsandbytes", (), {"features": features})
        monkeypatch.setattr(packages.importlib, "import_module", lambda name, found=module: found)
        assert packages.is_bitsandbytes_multi_backend_available() is available


@pytest.mark.parametrize(("minimum", "available"), [("1.0", True), ("99.0", False)])
def test_numpy_of_a_version(minimum, available):
    assert packages.is_numpy_available(minimum) is available


@pytest.mark.parametrize(
    ("variables", "version", "available"),
    [
        ({}, "0.9.0", False),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "0.9.0", True),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "0.7.0", False),
        ({"ACCELERATE_USE_MEGATRON_LM": "false"}, "0.9.0", False),
    ],
)
def test_megatron_has_to_be_asked_for(install, variables, version, available):
    install({"megatron": ("megatron-core", version)})
    with reading(variables):
        assert packages.is_megatron_lm_available() is available


@pytest.mark.parametrize(
    ("variables", "available"),
    [({}, False), ({"ACCELERATE_ENABLE_RICH": "1"}, True), ({"ACCELERATE_ENABLE_RICH": "0"}, False)],
)
def test_rich_has_to_be_asked_for(variables, available):
    with reading(variables):
        assert packages.is_rich_available() is available


def test_what_every_supported_torch_has():
    assert packages.is_pippy_available()
    assert packages.is_weights_only_available()
