"""TupleDict, row by row of its contract."""

import copy
import pickle
import subprocess
import sys

import pytest

from cudnn_core.tuple_dict import TupleDict


@pytest.fixture
def result():
    return TupleDict(first=1, second=[2], third=None)


def test_iterates_and_unpacks_values(result):
    first, second, third = result
    assert (first, second, third) == (1, [2], None)
    assert list(result) == [1, [2], None]
    assert tuple(result) == (1, [2], None)


def test_indexes_by_name_and_by_position(result):
    assert result["second"] == [2]
    assert result[0] == 1
    assert result[True] == [2]


@pytest.mark.parametrize("index", [-1, 3])
def test_positions_out_of_range_are_index_errors(result, index):
    with pytest.raises(IndexError, match=f"index {index} is out of range"):
        result[index]


def test_other_keys_are_plain_lookups(result):
    with pytest.raises(KeyError):
        result["fourth"]
    with pytest.raises(TypeError):
        result[[0]]
    with pytest.raises(KeyError):
        TupleDict({0: "unreachable"})[0.5]


def test_an_integer_key_is_unreachable():
    assert TupleDict({7: "value"})[0] == "value"
    with pytest.raises(IndexError):
        TupleDict({7: "value"})[7]


def test_the_rest_is_a_dict(result):
    assert len(result) == 3
    assert "first" in result
    assert 1 not in result
    assert list(result.keys()) == ["first", "second", "third"]
    assert list(result.values()) == [1, [2], None]
    assert result.get("second") == [2]
    assert result.get(0) is None
    assert repr(result) == "{'first': 1, 'second': [2], 'third': None}"
    assert list(reversed(result)) == ["third", "second", "first"]
    assert result == {"first": 1, "second": [2], "third": None}


def test_becomes_a_dict_by_key(result):
    expected = {"first": 1, "second": [2], "third": None}
    assert dict(result) == expected
    assert {**result} == expected
    assert (lambda **kwargs: kwargs)(**result) == expected


def test_copy_and_union_are_plain_dicts(result):
    assert type(result.copy()) is dict
    assert type(result | {"more": 1}) is dict


def test_is_not_hashable(result):
    with pytest.raises(TypeError):
        hash(result)


def test_later_keys_are_reached_by_name_only(result):
    result["late"] = 4
    assert result["late"] == 4
    assert list(result) == [1, [2], None]
    assert len(result) == 4
    with pytest.raises(IndexError):
        result[3]


def test_a_deleted_key_fails_where_it_stood(result):
    del result["second"]
    values = iter(result)
    assert next(values) == 1
    with pytest.raises(KeyError):
        next(values)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))]
)
def test_copies_keep_type_and_order(result, duplicate):
    result["late"] = 4
    twin = duplicate(result)
    assert type(twin) is TupleDict
    assert twin == result
    assert list(twin) == [1, [2], None]


def test_import_needs_no_array_library():
    code = (
        "import sys, cudnn_core.tuple_dict;"
        "print([m for m in ('numpy', 'torch', 'jax', 'cutlass', 'tvm_ffi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
