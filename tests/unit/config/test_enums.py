"""The text forms of the enums, which are part of the public API."""

from __future__ import annotations

import copy
import pickle

import pytest

from accelerate.config import enums
from accelerate.config.enums import (
    ComputeEnvironment,
    CustomDtype,
    DDPCommunicationHookType,
    DistributedType,
    DynamoBackend,
    FP8BackendType,
    LoggerType,
    PrecisionType,
    RNGType,
    SageMakerDistributedType,
)

BY_CLASS = [DistributedType, SageMakerDistributedType, FP8BackendType, ComputeEnvironment]
BY_VALUE = [PrecisionType, DynamoBackend]
NOT_TEXT = [LoggerType, RNGType, DDPCommunicationHookType]


@pytest.mark.parametrize("member", [member for enum in BY_CLASS for member in enum])
def test_these_print_as_class_and_member_and_equal_their_value(member):
    text = f"{type(member).__name__}.{member.name}"
    assert str(member) == f"{member}" == f"{member!s}" == "{}".format(member) == text  # noqa: UP032
    assert repr(member) == f"<{text}: {member.value!r}>"
    assert member == member.value
    assert type(member)(member.value) is member


@pytest.mark.parametrize("member", [member for enum in BY_VALUE for member in enum])
def test_these_print_their_value_and_equal_it(member):
    assert str(member) == f"{member}" == "{}".format(member) == member.value  # noqa: UP032
    assert member == member.value
    assert isinstance(member, str)


@pytest.mark.parametrize("member", [member for enum in NOT_TEXT for member in enum])
def test_these_print_their_value_and_do_not_equal_it(member):
    assert str(member) == f"{member}" == member.value
    assert member != member.value


@pytest.mark.parametrize("enum", [*BY_VALUE, *NOT_TEXT])
def test_values_can_be_listed_and_looked_for(enum):
    assert enum.list() == [member.value for member in enum]
    assert all(member in enum and member.value in enum for member in enum)
    assert "nonsense" not in enum


def test_custom_dtypes_are_plain():
    assert {member.name: member.value for member in CustomDtype} == {"FP8": "fp8", "INT4": "int4", "INT2": "int2"}
    assert str(CustomDtype.FP8) == "CustomDtype.FP8"


@pytest.mark.parametrize("enum", [*BY_CLASS, *BY_VALUE, *NOT_TEXT, CustomDtype])
def test_members_stay_themselves_through_copies(enum):
    for member in enum:
        assert copy.deepcopy(member) is member
        assert pickle.loads(pickle.dumps(member)) is member


def test_lookup_is_by_exact_value():
    with pytest.raises(ValueError, match="'te' is not a valid FP8BackendType"):
        FP8BackendType("te")


def test_value_of():
    assert enums.value_of(DistributedType.NO) == "NO"
    assert type(enums.value_of(DistributedType.NO)) is str
    assert enums.value_of("text") == "text"
