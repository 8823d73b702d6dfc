"""What is read from nvidia-smi, and the cards that can't talk to each other."""

from __future__ import annotations

import types

import pytest

from accelerate.devices import nvidia

PAIR = ["NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"]


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch):
    """Return a function that installs a fake nvidia-smi with an answer per field."""

    def install(returncode: int = 0, **answers: str) -> None:
        def run(command: list[str], **kwargs: object) -> types.SimpleNamespace:
            field = command[1].removeprefix("--query-gpu=").replace(",", "_").replace(".", "_")
            return types.SimpleNamespace(returncode=returncode, stdout=answers.get(field, ""))

        monkeypatch.setattr(nvidia.shutil, "which", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(nvidia.subprocess, "run", run)

    for switch in nvidia.SWITCHES:
        monkeypatch.delenv(switch, raising=False)
    return install


def test_cards_and_driver_are_read(smi) -> None:
    smi(name="NVIDIA L4\nNVIDIA L4\n", driver_version="550.54.15\n550.54.15\n")
    assert nvidia.get_gpu_info() == (["NVIDIA L4", "NVIDIA L4"], 2)
    assert nvidia.get_driver_version() == "550.54.15"


def test_a_machine_without_the_tool_has_no_nvidia_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia.shutil, "which", lambda name: None)
    assert nvidia.get_gpu_info() == ([], 0)
    assert nvidia.get_driver_version() == ""
    assert nvidia.check_cuda_p2p_ib_support()


def test_a_tool_without_a_driver_has_no_cards(smi) -> None:
    smi(returncode=9, name="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert nvidia.get_gpu_info() == ([], 0)


@pytest.mark.parametrize(
    ("names", "driver", "expected"),
    [
        (PAIR, "535.104.05", False),
        (PAIR, "550.40.07", True),
        (PAIR, "555.42", True),
        (PAIR[:1], "535.104.05", True),
        (["NVIDIA A100", "NVIDIA A100"], "470.1", True),
        (["NVIDIA A100", PAIR[0]], "535.104.05", False),
        (PAIR, "unreadable", False),
    ],
)
def test_which_cards_can_be_trusted(smi, names: list[str], driver: str, expected: bool) -> None:
    smi(name="\n".join(names), driver_version=driver)
    assert nvidia.check_cuda_p2p_ib_support() is expected


def test_broken_cards_are_refused_with_what_to_set(smi) -> None:
    smi(driver_version="535.104.05")
    with pytest.raises(NotImplementedError, match=r"driver 535\.104\.05") as refused:
        nvidia.check_peer_to_peer(PAIR)
    assert "NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1" in str(refused.value)


@pytest.mark.parametrize("switches", [("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"), ("NCCL_P2P_DISABLE",)])
def test_both_switches_are_needed(smi, monkeypatch: pytest.MonkeyPatch, switches: tuple[str, ...]) -> None:
    smi(driver_version="535.104.05")
    for switch in switches:
        monkeypatch.setenv(switch, "1")
    if len(switches) == 2:
        assert nvidia.check_peer_to_peer(PAIR) is None
    else:
        with pytest.raises(NotImplementedError):
            nvidia.check_peer_to_peer(PAIR)


def test_sound_drivers_and_other_cards_pass(smi) -> None:
    smi(driver_version="555.42.02")
    assert nvidia.check_peer_to_peer(PAIR) is None
    assert nvidia.check_peer_to_peer(["NVIDIA H100"] * 8) is None


@pytest.mark.parametrize(("uuid", "expected"), [("GPU-b", "0000:5e:00.0"), ("GPU-z", None)])
def test_a_card_is_found_on_the_bus(smi, uuid: str, expected: str | None) -> None:
    smi(uuid_pci_bus_id="GPU-a, 00000000:3B:00.0\nGPU-b, 00000000:5E:00.0\n")
    assert nvidia.address_of(uuid) == expected
