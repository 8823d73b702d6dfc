"""What is checked and put back around torch's agent; the runs themselves are in tests/launch."""

from __future__ import annotations

import logging
import os
import socket
import sys
import types

import pytest

from accelerate.launchers import elastic

CPP = elastic.CPP_LEVEL


def test_a_free_port_is_no_matter() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert elastic.check_port(port) is None


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        ("process 7 (python x.py)", ["held by process 7 (python x.py)"]),
        (None, ["can't see", "ss -ltnp 'sport = :29500'"]),
    ],
)
def test_a_port_in_use_is_refused(monkeypatch: pytest.MonkeyPatch, holder: str | None, said: list[str]) -> None:
    monkeypatch.setattr(elastic, "is_port_in_use", lambda port: True)
    monkeypatch.setattr(elastic, "who_holds", lambda port: holder)
    with pytest.raises(ValueError, match="--main_process_port 0") as refused:
        elastic.check_port(29500)
    assert [part for part in said if part not in str(refused.value)] == []


@pytest.mark.parametrize(("loglevel", "level"), [(None, logging.CRITICAL + 1), ("INFO", logging.WARNING)])
def test_torch_is_quiet_unless_asked(monkeypatch: pytest.MonkeyPatch, loglevel: str | None, level: int) -> None:
    name = "torch.distributed.elastic.for_this_test"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.delenv("LOGLEVEL", raising=False)
    if loglevel:
        monkeypatch.setenv("LOGLEVEL", loglevel)
    logger = logging.getLogger(name)
    logger.setLevel(logging.WARNING)
    with elastic.quiet_torch():
        assert logger.level == level
    assert logger.level == logging.WARNING


@pytest.mark.parametrize(("given", "inside"), [({}, "ERROR"), ({"LOGLEVEL": "INFO"}, None), ({CPP: "INFO"}, "INFO")])
def test_torch_prints_no_stacks_of_its_own_unless_somebody_wants_them(monkeypatch, given, inside):
    for name in ("LOGLEVEL", CPP):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with elastic.quiet_import():
        assert os.environ.get(CPP) == inside
    assert os.environ.get(CPP) == given.get(CPP)
