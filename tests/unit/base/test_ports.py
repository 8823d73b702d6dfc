"""Ports that are free, taken, and by whom."""

from __future__ import annotations

import os
import socket

import psutil
import pytest

from accelerate.base import ports


@pytest.fixture
def listener():
    """Listen on some port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("localhost", 0))
        server.listen()
        yield server


def test_a_port_that_is_listened_on_is_in_use(listener):
    port = listener.getsockname()[1]
    assert ports.is_port_in_use(port)
    assert ports.is_port_in_use(str(port))
    listener.close()
    assert not ports.is_port_in_use(port)


def test_a_free_port_is_free():
    assert not ports.is_port_in_use(ports.get_free_port())


def test_a_free_port_is_none_that_the_system_gives_away():
    found = {ports.get_free_port() for _ in range(20)}
    assert found <= set(ports.FREE_PORTS)
    assert len(found) > 1


def test_where_all_is_taken_the_system_chooses(monkeypatch, listener):
    monkeypatch.setattr(ports, "FREE_PORTS", [listener.getsockname()[1]])
    assert ports.get_free_port() != listener.getsockname()[1]


def test_the_port_asked_about_by_default(monkeypatch):
    port = ports.get_free_port()
    monkeypatch.setattr(ports, "DEFAULT_PORT", port)
    assert not ports.is_port_in_use()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("localhost", port))
        server.listen()
        assert ports.is_port_in_use()


def test_who_holds_a_port(listener):
    holder = ports.who_holds(listener.getsockname()[1])
    assert holder is not None
    command = " ".join(" ".join(psutil.Process().cmdline()).split())
    assert holder == f"process {os.getpid()} ({command})"


def test_nobody_holds_a_free_port():
    assert ports.who_holds(ports.get_free_port()) is None


@pytest.mark.parametrize("error", [psutil.AccessDenied(1), psutil.NoSuchProcess(1)])
def test_a_process_whose_command_is_hidden_is_named_by_number(listener, monkeypatch, error):
    def hidden(self):
        raise error

    monkeypatch.setattr(psutil.Process, "cmdline", hidden)
    assert ports.who_holds(listener.getsockname()[1]) == f"process {os.getpid()}"


def test_a_machine_that_shows_no_connections(monkeypatch):
    def denied(kind):
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", denied)
    assert ports.who_holds(1) is None
