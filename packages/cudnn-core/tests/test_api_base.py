"""api_base: life cycle, experimental notice, and the helpers on buffers."""

import logging
import threading

import numpy as np
import pytest

from cudnn_core import api_base
from cudnn_core.api_base import (
    APIBase,
    check_buffers_disjoint,
    check_workspace,
    pad_rank,
    warn_experimental_api_once,
)
from cudnn_core.tensor_desc import TensorDesc


class Doubler(APIBase):
    """Records what the life cycle asks of it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def check_support(self):
        self.calls.append("check_support")
        self._is_supported = True
        return True

    def compile(self):
        if self._is_compiled:
            return
        self._ensure_support_checked()
        self.calls.append("compile")
        self._is_compiled = True

    def execute(self, x, out, current_stream=None):
        self._require_compiled()
        self.calls.append("execute")
        out[...] = 2 * x


@pytest.fixture(autouse=True)
def _notices_again():
    api_base._reset_experimental_api_warning_registry()
    yield
    api_base._reset_experimental_api_warning_registry()


def test_the_base_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        APIBase()


def test_execute_before_compile_names_the_class():
    with pytest.raises(RuntimeError, match="Doubler: call compile"):
        Doubler().execute(np.ones(2), np.ones(2))


def test_compile_checks_support_and_says_so(caplog):
    op = Doubler()
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="Doubler"):
        op.compile()
        op.compile()
    assert op.calls == ["check_support", "compile"]
    assert [r.levelname for r in caplog.records] == ["INFO"]
    assert "check_support" in caplog.text


def test_compile_after_check_support_does_not_repeat_it(caplog):
    op = Doubler()
    assert op.check_support() is True
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="Doubler"):
        op.compile()
    assert op.calls == ["check_support", "compile"]
    assert not caplog.records


def test_calling_compiles_first():
    op, out = Doubler(), np.zeros(2)
    op(np.ones(2), out=out)
    op(np.ones(2), out)
    assert op.calls == ["check_support", "compile", "execute", "execute"]
    assert out.tolist() == [2, 2]


def test_the_notice_comes_once_for_each_class_name(caplog):
    other = type("Other", (Doubler,), {})
    for made in (Doubler, other, Doubler, other):
        made()
    notices = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
    assert notices == [
        ("Doubler", "WARNING", "Doubler is an experimental API"),
        ("Other", "WARNING", "Other is an experimental API"),
    ]
    api_base._reset_experimental_api_warning_registry()
    Doubler()
    assert len(caplog.records) == 3


def test_the_notice_comes_once_from_many_threads(caplog):
    logger, barrier = logging.getLogger("many"), threading.Barrier(8)

    def work():
        barrier.wait()
        warn_experimental_api_once(logger, "Many")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.getMessage() for r in caplog.records] == ["Many is an experimental API"]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("rank", [1, 3])
def test_unit_ranks_are_interchangeable(shape, rank):
    assert pad_rank(TensorDesc.of("float32", shape), rank).shape == (1,) * rank


def test_rank_padding_works_at_the_last_dim():
    assert pad_rank(TensorDesc.of("float32", (4,)), 3).shape == (4, 1, 1)
    assert pad_rank(TensorDesc.of("float32", (4, 1)), 1).shape == (4,)
    with pytest.raises(ValueError, match=r"amax: expected 1 dims.*got shape \(1, 4\)"):
        pad_rank(TensorDesc.of("float32", (1, 4), name="amax"), 1)


# buffers

BUFFER = np.zeros(64, np.float32)


@pytest.mark.parametrize(
    "writer, reader, overlap",
    [
        (BUFFER[:8], BUFFER[8:16], False),
        (BUFFER[:9], BUFFER[8:16], True),
        (BUFFER[8:16], BUFFER[:9], True),
        (BUFFER[::2], BUFFER[1::2], True),  # interleaved: the ranges meet
        (BUFFER[0:1], BUFFER[1:2], False),
        (BUFFER[15:7:-1], BUFFER[0:8], False),  # negative strides reach down
        (BUFFER[15:7:-1], BUFFER[0:9], True),
        (BUFFER[4:4], BUFFER, False),  # empty: spans nothing
        (BUFFER.reshape(8, 8)[:, :4], BUFFER.reshape(8, 8)[:, 4:], True),
        (BUFFER.reshape(8, 8)[:4], BUFFER.reshape(8, 8)[4:], False),
        (BUFFER[:8], BUFFER[7:8].view(np.uint8)[3:], True),
        (BUFFER[:8], np.zeros(4), False),
    ],
)
def test_written_buffers_must_not_meet_others(writer, reader, overlap):
    for readers, writers in (([("r", reader)], []), ([], [("r", reader)])):
        arguments = ([("w", writer), *writers], readers, "dgrad")
        if overlap:
            with pytest.raises(ValueError, match="dgrad: w is written and must not overlap r"):
                check_buffers_disjoint(*arguments)
        else:
            check_buffers_disjoint(*arguments)


def test_read_buffers_may_meet_and_absent_ones_do_not_count():
    check_buffers_disjoint([("w", None)], [("a", BUFFER), ("b", BUFFER), ("c", None)])
    with pytest.raises(TypeError, match="expected a tensor, got int"):
        check_buffers_disjoint([("w", 3)])


def test_packed_fp4_and_torch_views_span_their_bytes():
    torch = pytest.importorskip("torch")
    data = torch.empty(32, dtype=torch.uint8)
    packed = data[:16].view(torch.float4_e2m1fn_x2)
    check_buffers_disjoint([("w", packed)], [("r", data[16:])])
    with pytest.raises(ValueError, match="overlap"):
        check_buffers_disjoint([("w", packed)], [("r", data[15:])])


def aligned(nbytes, offset=0):
    """`nbytes` uint8 whose address is `offset` past a multiple of 128."""
    raw = np.zeros(nbytes + 256, np.uint8)
    start = -raw.__array_interface__["data"][0] % 128 + offset
    return raw[start : start + nbytes]


def test_a_workspace_that_fits():
    check_workspace(aligned(64), 64)
    check_workspace(aligned(64).view(np.float32).reshape(4, 4), 60, 128)
    check_workspace(None, 0)
    check_workspace(aligned(0, 1), 0)
    check_workspace(aligned(64, 1), 0)  # nothing is written


def test_a_workspace_without_memory():
    torch = pytest.importorskip("torch")
    dropped = torch.zeros(64)
    dropped.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="ws: expected a tensor with memory, got address 0"):
        check_workspace(dropped, 64, 16, "ws")
    apart = torch.zeros(64, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)[::2]
    with pytest.raises(ValueError, match="ws: packed FP4 needs a dimension of stride 1"):
        check_workspace(apart, 16, 16, "ws")


@pytest.mark.parametrize(
    "buffer, nbytes, alignment, error, message",
    [
        (None, 1, 16, ValueError, "ws: expected a tensor of at least 1 bytes, got None"),
        (aligned(64), 65, 16, ValueError, "ws: expected at least 65 bytes, got 64"),
        (aligned(64)[::2], 16, 16, ValueError, "ws: expected a contiguous tensor"),
        (aligned(64, 8), 64, 16, ValueError, "ws: expected 16-byte alignment"),
        (aligned(64, 16), 64, 128, ValueError, "ws: expected 128-byte alignment"),
        (64, 64, 16, TypeError, "ws: expected a tensor, got int"),
        (TensorDesc.of("uint8", (64,)), 64, 16, TypeError, "ws: expected a tensor, got TensorDesc"),
    ],
)
def test_a_workspace_that_does_not(buffer, nbytes, alignment, error, message):
    with pytest.raises(error, match=message):
        check_workspace(buffer, nbytes, alignment, "ws")
