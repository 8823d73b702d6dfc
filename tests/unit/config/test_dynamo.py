"""What `torch.compile` is asked to do."""

from __future__ import annotations

import pytest
import torch

from accelerate.base.environ import reading
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import DynamoBackend

DEFAULTS = {
    "backend": "no",
    "mode": "default",
    "fullgraph": False,
    "dynamic": None,
    "options": None,
    "disable": False,
    "use_regional_compilation": False,
}

BUILT = [
    ({}, {}, {}),
    ({"backend": "inductor"}, {}, {"backend": "inductor"}),
    ({"backend": "INDUCTOR"}, {}, {"backend": "inductor"}),
    ({"backend": DynamoBackend.EAGER}, {}, {"backend": "eager"}),
    ({"backend": "torhchxla_trace_once"}, {}, {"backend": "torchxla_trace_once"}),
    ({"backend": "no"}, {"ACCELERATE_DYNAMO_BACKEND": "inductor"}, {}),
    ({}, {"ACCELERATE_DYNAMO_BACKEND": "inductor"}, {"backend": "inductor"}),
    ({"mode": "max-autotune"}, {"ACCELERATE_DYNAMO_MODE": "lite"}, {"mode": "max-autotune"}),
    ({}, {"ACCELERATE_DYNAMO_MODE": "reduce-overhead"}, {"mode": "reduce-overhead"}),
    ({}, {"ACCELERATE_DYNAMO_USE_FULLGRAPH": "True"}, {"fullgraph": True}),
    ({"fullgraph": False}, {"ACCELERATE_DYNAMO_USE_FULLGRAPH": "True"}, {}),
    ({}, {"ACCELERATE_DYNAMO_USE_DYNAMIC": "False"}, {"dynamic": False}),
    ({"dynamic": True}, {"ACCELERATE_DYNAMO_USE_DYNAMIC": "False"}, {"dynamic": True}),
    ({"options": {"a": 1}, "disable": True}, {}, {"options": {"a": 1}, "disable": True}),
    ({"use_regional_compilation": True}, {}, {}),
]


@pytest.mark.parametrize(("arguments", "variables", "kwargs"), BUILT)
def test_what_torch_compile_is_given(arguments, variables, kwargs):
    with reading(variables):
        plugin = TorchDynamoPlugin(**arguments)
        assert plugin.to_kwargs() == kwargs
    regional = arguments.get("use_regional_compilation", False)
    assert plugin.to_dict() == {**DEFAULTS, **kwargs, "use_regional_compilation": regional}


def test_regional_compilation_may_come_from_the_environment():
    with reading({"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "true"}):
        assert TorchDynamoPlugin().use_regional_compilation is True
        assert TorchDynamoPlugin(use_regional_compilation=False).use_regional_compilation is False


def test_the_backend_is_a_member():
    assert TorchDynamoPlugin(backend="eager").backend is DynamoBackend.EAGER
    assert TorchDynamoPlugin().backend is DynamoBackend.NO


@pytest.mark.parametrize(
    ("arguments", "variables", "given", "advice"),
    [
        ({"backend": "inducter"}, {}, "argument backend = 'inducter'", "Did you mean 'inductor'?"),
        (
            {},
            {"ACCELERATE_DYNAMO_BACKEND": "inducter"},
            "environment variable ACCELERATE_DYNAMO_BACKEND = 'inducter'",
            "Did you mean 'inductor'?",
        ),
        ({"mode": "autotune"}, {}, "argument mode = 'autotune'", "Did you mean 'max-autotune'?"),
    ],
)
def test_what_is_refused(arguments, variables, given, advice):
    with reading(variables), pytest.raises(ValueError) as caught:
        TorchDynamoPlugin(**arguments)
    lines = str(caught.value).splitlines()
    assert (lines[0], lines[3]) == (f"Given: {given}", f"What to do: {advice}")


def test_torch_takes_what_it_is_given():
    plugin = TorchDynamoPlugin(backend="eager", dynamic=False, fullgraph=True)
    compiled = torch.compile(torch.nn.Linear(2, 2), **plugin.to_kwargs())
    assert compiled(torch.ones(1, 2)).shape == (1, 2)


def test_every_mode_of_this_torch_is_known():
    from torch._inductor import list_mode_options

    from accelerate.config.option import option_of

    assert set(list_mode_options()) <= set(option_of(TorchDynamoPlugin, "mode").kind.names)
