"""The door of the questionnaire."""

from __future__ import annotations

import pytest

from accelerate.config import questionnaire
from accelerate.config.cluster import ClusterConfig
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import ComputeEnvironment, DistributedType, DynamoBackend
from accelerate.config.option import Boolean, Choice, Integer, Option, Text, options
from accelerate.config.parallelism_settings import ParallelismSettings
from accelerate.config.questionnaire import ask, file_content, on_terminal

CLASSES = (ClusterConfig, TorchDynamoPlugin)


class Person:
    """Answers questions from a script; what isn't in it takes what is offered."""

    def __init__(self, **script) -> None:
        self.script, self.asked, self.offered, self.shown = script, [], {}, {}

    def __call__(self, declared, suggestion, choices):
        self.asked.append(declared.dest)
        self.offered[declared.dest] = suggestion
        self.shown[declared.dest] = choices
        return self.script.get(declared.dest, suggestion)


def test_one_process_is_asked_little():
    person = Person(compute_environment="LOCAL_MACHINE", distributed_type="NO")
    answers = ask(*CLASSES, prompt=person)
    assert person.asked == [
        "compute_environment",
        "distributed_type",
        "mixed_precision",
        "cpu",
        "debug",
        "gpu_ids",
        "enable_cpu_affinity",
        "dynamo_backend",
    ]
    assert answers == {
        "compute_environment": ComputeEnvironment.LOCAL_MACHINE,
        "distributed_type": DistributedType.NO,
        "mixed_precision": "no",
        "cpu": False,
        "debug": False,
        "gpu_ids": "all",
        "enable_cpu_affinity": False,
        "dynamo_backend": DynamoBackend.NO,
    }


@pytest.mark.parametrize(
    ("script", "asked", "not_asked"),
    [
        ({"distributed_type": "MULTI_GPU"}, {"num_processes", "num_machines"}, {"machine_rank", "main_process_ip"}),
        (
            {"distributed_type": "MULTI_GPU", "num_machines": "2", "main_process_ip": "a"},
            {"machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "same_network"},
            {"tpu_use_cluster"},
        ),
        ({"distributed_type": "MULTI_CPU", "cpu": True}, {"num_processes"}, {"gpu_ids"}),
        ({"distributed_type": "NO", "cpu": True}, set(), {"gpu_ids", "num_processes"}),
        ({"distributed_type": "XLA", "tpu_use_cluster": True}, {"tpu_name", "tpu_zone", "tpu_use_sudo"}, {"gpu_ids"}),
        ({"distributed_type": "XLA"}, {"main_training_function"}, {"tpu_name", "downcast_bf16"}),
        ({"distributed_type": "XLA", "mixed_precision": "bf16"}, {"downcast_bf16"}, {"tpu_name"}),
        ({"distributed_type": "NO", "dynamo_backend": "inductor"}, {"dynamo_mode", "dynamo_use_dynamic"}, set()),
    ],
)
def test_an_answer_decides_what_is_asked_next(script, asked, not_asked):
    person = Person(**script)
    ask(*CLASSES, prompt=person)
    assert asked <= set(person.asked)
    assert not_asked.isdisjoint(person.asked)


def test_what_is_known_is_offered_again():
    person = Person()
    answers = ask(*CLASSES, answers={"distributed_type": DistributedType.MULTI_CPU, "num_processes": 4}, prompt=person)
    assert person.offered["num_processes"] == 4
    assert answers["num_processes"] == 4


def test_choices_can_be_narrowed():
    person = Person(distributed_type="NO")
    ask(*CLASSES, offer={"distributed_type": ["NO", "MULTI_CPU"]}, prompt=person)
    assert person.shown["distributed_type"] == ["NO", "MULTI_CPU"]
    assert person.shown["mixed_precision"] is None


@pytest.mark.parametrize("nothing", [None, ""])
def test_no_answer_leaves_a_setting_open(nothing):
    assert "gpu_ids" not in ask(*CLASSES, prompt=Person(distributed_type="NO", gpu_ids=nothing))


def test_an_answer_that_is_not_allowed_is_refused():
    with pytest.raises(ValueError, match="the answer to 'How many processes should run in total"):
        ask(*CLASSES, prompt=Person(distributed_type="MULTI_CPU", num_processes="many"))


def test_answers_become_the_config_they_describe():
    script = {"distributed_type": "MULTI_CPU", "cpu": True, "num_processes": "2", "dynamo_backend": "eager"}
    answers = ask(*CLASSES, prompt=Person(**script))
    content = file_content(answers, *CLASSES)
    assert content["use_cpu"] is True
    assert content["dynamo_config"]["dynamo_backend"] == "EAGER"
    config = ClusterConfig.from_dict(content)
    assert {dest: config.values()[dest] for dest in answers} == answers


@pytest.mark.parametrize("cls", CLASSES)
def test_what_is_asked_can_be_kept(cls):
    assert [one.name for one in options(cls).values() if one.ask and not one.yaml] == []
    assert [one.ask for one in options(cls).values() if one.ask and not one.ask.endswith("?")] == []


# --- on the terminal ---


@pytest.fixture
def screen(monkeypatch):
    """Return the record of what questionary was asked to show; it answers "answered"."""
    import questionary

    shown = []

    class Question:
        def unsafe_ask(self):
            return "answered"

    def stand_in(kind):
        def show(*args, **kwargs):
            shown.append((kind, *args, kwargs))
            return Question()

        return show

    for kind in ("confirm", "select", "text"):
        monkeypatch.setattr(questionary, kind, stand_in(kind))
    return shown


PRECISION = Option(help="", kind=Choice(("no", "fp16", "bf16")), ask="Which?")


@pytest.mark.parametrize(
    ("declared", "suggestion", "offered", "shown"),
    [
        (Option(help="", kind=Boolean(), ask="Yes?"), True, None, ("confirm", "Yes?", {"default": True})),
        (Option(help="", kind=Boolean(), ask="Yes?"), None, None, ("confirm", "Yes?", {"default": False})),
        (PRECISION, "fp16", None, ("select", "Which?", ["no", "fp16", "bf16"], {"default": "fp16"})),
        (PRECISION, None, ["no", "bf16"], ("select", "Which?", ["no", "bf16"], {"default": None})),
        (PRECISION, "fp16", ["no", "bf16"], ("select", "Which?", ["no", "bf16"], {"default": None})),
    ],
)
def test_each_kind_is_asked_in_its_way(screen, declared, suggestion, offered, shown):
    assert on_terminal(declared, suggestion, offered) == "answered"
    assert screen == [shown]


@pytest.mark.parametrize(("kind", "suggestion", "default"), [(Integer(1), 4, "4"), (Text(), None, "")])
def test_text_is_checked_while_it_is_typed(screen, kind, suggestion, default):
    on_terminal(Option(help="", kind=kind, ask="What?"), suggestion, None)
    [(way, question, arguments)] = screen
    assert (way, question, arguments["default"]) == ("text", "What?", default)
    assert arguments["validate"]("3") is True
    if isinstance(kind, Integer):
        assert arguments["validate"]("0") == "it is smaller than 1; allowed: a whole number, 1 or more"


@pytest.mark.parametrize(
    ("script", "asked", "content"),
    [
        ({}, {"has_axes"}, {}),
        (
            {"has_axes": True, "parallelism_config_tp_size": "2"},
            {"has_axes", *(f"parallelism_config_{name}_size" for name in ("dp_replicate", "tp", "cp", "pp"))},
            {"dp_replicate_size": 1, "tp_size": 2, "cp_size": 1, "pp_size": 1},
        ),
        (
            {
                "has_axes": True,
                "distributed_type": "FSDP",
                "parallelism_config_dp_shard_size": "4",
                "parallelism_config_pp_size": "2",
                "parallelism_config_pp_schedule": "interleaved",
                "parallelism_config_pp_num_microbatches": "",
            },
            {"parallelism_config_dp_shard_size", "parallelism_config_pp_schedule"},
            {
                "dp_replicate_size": 1,
                "dp_shard_size": 4,
                "tp_size": 1,
                "cp_size": 1,
                "pp_size": 2,
                "pp_schedule": "interleaved",
            },
        ),
    ],
    ids=["not wanted", "divided layers", "a pipeline of shards"],
)
def test_how_processes_share_models_is_asked_where_they_do(script, asked, content):
    person = Person(**{"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", **script})
    answers = ask(ClusterConfig, ParallelismSettings, prompt=person)
    about = {dest for dest in person.asked if dest == "has_axes" or dest.startswith("parallelism")}
    assert about == asked if "parallelism_config_pp_size" not in script else asked < about
    found = file_content(answers, ClusterConfig, ParallelismSettings).get("parallelism_config", {})
    assert found == {f"parallelism_config_{name}": value for name, value in content.items()}


def test_no_answer_is_an_answer_where_nothing_is_the_default():
    check = questionnaire._validator(options(ParallelismSettings)["pp_num_microbatches"])
    assert check("") is True
    assert "whole number" in str(check("two"))
    assert "whole number" in str(questionnaire._validator(options(ParallelismSettings)["pp_size"])(""))
