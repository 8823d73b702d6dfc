"""What config files of earlier releases say, in today's words."""

from __future__ import annotations

import copy

import pytest

from accelerate.config.historical import modernise

TRANSLATED = [
    ({}, {}),
    ({"mixed_precision": "bf16", "unknown": 1}, {"mixed_precision": "bf16", "unknown": 1}),
    ({"fp16": True}, {"mixed_precision": "fp16"}),
    ({"fp16": "yes"}, {"mixed_precision": "fp16"}),
    ({"fp16": False}, {"mixed_precision": "no"}),
    ({"fp16": "bf16"}, {"mixed_precision": "bf16"}),
    ({"fp16": True, "mixed_precision": "fp16"}, {"mixed_precision": "fp16"}),
    ({"fp16": True, "mixed_precision": None}, {"mixed_precision": "fp16"}),
    ({"dynamo_backend": "INDUCTOR"}, {"dynamo_config": {"dynamo_backend": "INDUCTOR"}}),
    ({"dynamo_backend": "NO"}, {"dynamo_config": {}}),
    ({"dynamo_backend": "no"}, {"dynamo_config": {}}),
    ({"dynamo_backend": False}, {"dynamo_config": {}}),
    ({"dynamo_backend": None}, {"dynamo_config": {}}),
    ({"fsdp_config": None}, {"fsdp_config": None}),
    ({"fsdp_config": {"fsdp_version": 1}}, {"fsdp_config": {"fsdp_version": 1}}),
]


@pytest.mark.parametrize(("old", "new"), TRANSLATED)
def test_an_old_key_means_todays(old, new):
    before = copy.deepcopy(old)
    assert modernise(old) == new
    assert old == before
    assert modernise(new) == new


@pytest.mark.parametrize(
    ("content", "deleted"),
    [
        ({"fp16": True, "mixed_precision": "bf16"}, "fp16: True"),
        ({"dynamo_backend": "EAGER", "dynamo_config": {"dynamo_backend": "INDUCTOR"}}, "dynamo_backend: EAGER"),
    ],
)
def test_old_and_new_that_contradict_each_other_are_refused(content, deleted):
    with pytest.raises(ValueError) as caught:
        modernise(content)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["Given", "Why not", "Allowed", "What to do"]
    assert lines[-1] == f"What to do: delete the line `{deleted}`"


@pytest.mark.parametrize("others", [{}, {"fsdp_version": 1}])
def test_a_renamed_key_warns_and_is_kept(others):
    old = {"fsdp_config": {**others, "fsdp_backward_prefetch_policy": "BACKWARD_PRE"}}
    with pytest.warns(FutureWarning, match="fsdp_backward_prefetch_policy .* write fsdp_backward_prefetch instead"):
        assert modernise(old) == {"fsdp_config": {**others, "fsdp_backward_prefetch": "BACKWARD_PRE"}}
