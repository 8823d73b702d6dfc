"""Each check of the doctor, on machines that are described, and with programs that stand in for others."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from accelerate.base.ports import get_free_port
from accelerate.commands.doctor import doctor_command, doctor_command_parser
from accelerate.doctor import collective, configuration, installation, machine, network
from accelerate.doctor.checks import CHECKS
from accelerate.doctor.finding import Finding, Status, Visit, ok
from accelerate.launchers.hardware import Hardware
from tests.launch.plans import CPU, FOUR_GPUS, settings_of

OK, WARNING, FAILURE = Status.OK, Status.WARNING, Status.FAILURE


def visit(line: str = "", config: str = "", hardware: Hardware = CPU, folder: Path = Path(), patience: float = 5.0):
    return Visit(settings_of(f"{line} SCRIPT", config, hardware), folder, patience)


def found(check, *args, **kwargs) -> list[tuple[Status, str]]:
    """Return status and text of each finding; whatever isn't ok says what to do."""
    findings = list(check(visit(*args, **kwargs)))
    assert all(bool(one.do) == (one.status is not OK) for one in findings)
    return [(one.status, one.text) for one in findings]


INSTALLED = {"accelerate": "1.16.0", "torch": "2.13.0", "peft": "0.19.0", "numpy": "1.20"}
REQUIRED = {
    "accelerate": ["torch>=2.6", "numpy>=1.17,<3", "scikit-learn; extra == 'test'"],
    "peft": ["accelerate<1.0", "torch>=1.13", "tqdm"],
}


@pytest.fixture
def installed(monkeypatch):
    """Let only these packages be installed."""
    there = dict(INSTALLED)

    def version(name):
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRED.get(name))
    return there


def test_versions_that_do_not_fit_are_named(installed):
    assert found(installation.versions) == [
        (WARNING, "peft 0.19.0 needs accelerate<1.0, but 1.16.0 is installed"),
        (WARNING, "peft 0.19.0 needs tqdm, which isn't installed"),
    ]
    installed.update(accelerate="0.30.0", tqdm="4.66")
    ((status, text),) = found(installation.versions)
    assert status is OK
    assert "accelerate 0.30.0, torch 2.13.0, peft 0.19.0" in text
    del installed["torch"]
    assert (FAILURE, "torch isn't installed") in found(installation.versions)


@pytest.mark.parametrize(
    ("line", "hardware", "status", "text"),
    [
        ("", CPU, OK, "no accelerator"),
        ("--cpu", FOUR_GPUS, OK, "one on the CPU"),
        ("", FOUR_GPUS, OK, str(FOUR_GPUS)),
        ("", Hardware("cuda", 2, peer_to_peer=False), WARNING, "peer-to-peer"),
        ("--multi_gpu", CPU, FAILURE, "shows none"),
    ],
)
def test_devices(line, hardware, status, text):
    ((got, said),) = found(machine.devices, line, hardware=hardware)
    assert got is status
    assert text in said


@pytest.mark.parametrize(("free", "processes", "status"), [(8, 2, OK), (3, 2, WARNING), (3, 1, OK)])
def test_memory_is_shared_by_the_processes(monkeypatch, free, processes, status):
    facts = namedtuple("facts", "available")(free * machine.GIGABYTE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: facts)
    ((got, said),) = found(machine.memory, f"--cpu --num_processes {processes}")
    assert got is status
    assert said.startswith(f"{free}.0 GB of memory free, for {processes} process")


@pytest.mark.parametrize(("free", "status"), [(2.0, OK), (0.06, WARNING)])
def test_shared_memory(monkeypatch, tmp_path, free, status):
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path)
    facts = namedtuple("facts", "f_bavail f_frsize")(int(free * machine.GIGABYTE), 1)
    monkeypatch.setattr(os, "statvfs", lambda folder: facts)
    ((got, _),) = found(machine.shared_memory)
    assert got is status
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path / "none")
    assert found(machine.shared_memory) == []


def test_storage(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "SAMPLE", 1024**2)
    ((_, said),) = found(machine.storage, folder=tmp_path)
    assert "MB/s to disk" in said
    assert list(tmp_path.iterdir()) == []
    facts = namedtuple("facts", "f_bavail f_frsize")(1, machine.GIGABYTE)
    monkeypatch.setattr(os, "statvfs", lambda folder: facts)
    assert found(machine.storage, folder=tmp_path)[0][0] is WARNING
    ((status, said),) = found(machine.storage, folder=tmp_path / "missing")
    assert (status, said) == (FAILURE, f"{tmp_path / 'missing'} can't be written to: No such file or directory")


def test_the_meeting_point(monkeypatch):
    assert found(network.meeting_point) == []
    port = get_free_port()
    several = f"--cpu --num_machines 2 --num_processes 2 --main_process_port {port}"
    assert found(network.meeting_point, f"{several} --main_process_ip 127.0.0.1") == [
        (OK, "127.0.0.1 is 127.0.0.1"),
        (OK, f"port {port} is free"),
    ]
    with socket.create_server(("127.0.0.1", port)):
        ((_, _), (status, said)) = found(network.meeting_point, f"{several} --main_process_ip 127.0.0.1")
    assert status is FAILURE
    assert said.startswith(f"port {port} is in use by")

    def unknown(name, port):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert found(network.meeting_point, f"{several} --main_process_ip nowhere") == [
        (FAILURE, "nowhere has no address: Name or service not known")
    ]


def ask_each_other(monkeypatch, ahead: float) -> list[Finding]:
    """Return what two machines find of each other, the main one with a clock that is `ahead`."""
    port = get_free_port()
    line = f"--cpu --num_machines 2 --num_processes 2 --main_process_ip 127.0.0.1 --main_process_port {port}"
    findings: dict[int, list[Finding]] = {}
    main_thread, now = threading.current_thread(), time.time
    monkeypatch.setattr(time, "time", lambda: now() + (0.0 if threading.current_thread() is main_thread else ahead))
    visits = [visit(f"{line} --machine_rank {rank}", patience=20.0) for rank in (0, 1)]
    thread = threading.Thread(target=lambda: findings.update({0: list(network.machines(visits[0]))}))
    thread.start()
    findings[1] = list(network.machines(visits[1]))
    thread.join(30)
    return [*findings[0], *findings[1]]


def test_machines_reach_each_other_and_their_clocks_agree(monkeypatch):
    main, other = ask_each_other(monkeypatch, ahead=0.0)
    assert main == ok("the other machine has reached this one")
    assert other.status is OK
    assert "from ours" in other.text


def test_clocks_that_are_apart(monkeypatch):
    _, other = ask_each_other(monkeypatch, ahead=30.0)
    assert other.status is WARNING
    assert "+30.0" in other.text
    assert "NTP" in other.do


def test_machines_that_are_not_there():
    line = f"--cpu --num_machines 2 --num_processes 2 --main_process_ip 127.0.0.1 --main_process_port {get_free_port()}"
    ((status, said),) = found(network.machines, f"{line} --machine_rank 0", patience=0.2)
    assert status is FAILURE
    assert said.startswith("0 of 1 other machines have reached port")
    ((status, said),) = found(network.machines, f"{line} --machine_rank 1", patience=0.2)
    assert status is FAILURE
    assert "wasn't reached in 1 tries" in said
    assert found(network.machines, "--cpu") == []


def test_two_processes_exchange():
    ((status, said),) = found(collective.two_processes)
    assert status is OK
    assert "two processes through gloo" in said


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("raise ImportError('no torch')", "two processes can't exchange data: ImportError: no torch"),
        ("import time; time.sleep(60)", "two processes didn't finish an exchange within 0.5 s"),
    ],
)
def test_two_processes_that_fail_or_hang(monkeypatch, probe, said):
    monkeypatch.setattr(collective, "PROBE", probe)
    if "sleep" in probe:
        monkeypatch.setattr(collective, "LIMIT", 0.5)
    assert found(collective.two_processes) == [(FAILURE, said)]


def test_the_configuration():
    assert found(configuration.configuration, "--cpu --num_processes 2") == [
        (OK, "no config file: 2 processes, by torchrun")
    ]
    ((status, said),) = found(configuration.configuration, "", "{distributed_type: 'NO', num_processes: 4}")
    assert status is FAILURE
    assert said.startswith("`distributed_type: NO` in c.yaml and `num_processes: 4` in c.yaml: ")
    warned, fine = found(configuration.configuration, "--cpu --role teacher")
    assert warned == (WARNING, "--role teacher has no effect: one process has nobody to meet")
    assert fine[0] is OK


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run the command with checks that stand in for ours, and return its exit code and what it printed."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    one = {
        "fine": lambda visit: [ok(f"all is well in {visit.folder}")],
        "odd": lambda visit: [Finding(WARNING, "odd", "look")],
        "bad": lambda visit: [Finding(FAILURE, "bad", "mend")],
    }
    for name in list(CHECKS):
        monkeypatch.delitem(CHECKS, name)
    CHECKS.update(one)

    def call(*flags):
        code = 0
        try:
            doctor_command(doctor_command_parser().parse_args(["--folder", "f", *flags]))
        except SystemExit as left:
            code = left.code
        return code, capsys.readouterr().out

    yield call
    for name in one:
        CHECKS.pop(name)


def test_the_report(run):
    code, out = run()
    assert code == 1
    assert out.splitlines() == [
        "ok       fine: all is well in f",
        "warning  odd: odd",
        "         -> look",
        "failure  bad: bad",
        "         -> mend",
        "1 ok, 1 warnings, 1 failures",
    ]
    assert run("--skip", "bad")[0] == 0
    code, out = run("--only", "odd", "--only", "bad", "--json")
    assert (code, json.loads(out)) == (
        1,
        [
            {"check": "odd", "status": "warning", "text": "odd", "do": "look"},
            {"check": "bad", "status": "failure", "text": "bad", "do": "mend"},
        ],
    )
    with pytest.raises(ValueError, match=r"a check called 'fin'(.|\n)*fine, odd, bad(.|\n)*'fine'"):
        run("--only", "fin")


def test_a_config_file_that_can_not_be_read_is_a_finding(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "c.yaml").write_text("{distributed_type: 'NO', num_procesess: 2}")
    only = ["--only", "configuration", "--only", "shared memory", "--json"]
    with pytest.raises(SystemExit) as ended:
        doctor_command(doctor_command_parser().parse_args(["--config_file", str(tmp_path / "c.yaml"), *only]))
    assert ended.value.code == 1
    made = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert made["configuration"]["text"].startswith("unknown keys ['num_procesess'] in config file")
    assert made["configuration"]["do"] == "'num_procesess': Did you mean 'num_processes'?"
    assert set(made) == {"configuration", "shared memory"}, "the other checks are made"
