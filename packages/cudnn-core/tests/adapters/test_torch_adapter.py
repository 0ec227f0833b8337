"""The torch adapter on the CPU: metadata, allocation, NumPy views, and when a call needs the op."""

import threading
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnn_core import adapters
from cudnn_core.adapters import adapter_of
from cudnn_core.dtypes import as_dtype
from cudnn_core.engine import Workspace
from cudnn_core.tensor_desc import Device, TensorDesc

torch = pytest.importorskip("torch")

from cudnn_core.adapters import torch as torch_adapter

ADAPTER = adapter_of(torch.zeros(1))
CPU, CUDA0 = Device("cpu"), Device("cuda", 0)
FP4 = torch.float4_e2m1fn_x2
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
]


@st.composite
def views(draw):
    """A view with storage offset, steps, permuted dims, possibly empty or broadcast."""
    base = torch.empty(5, 6, 8, dtype=draw(st.sampled_from(DTYPES)))
    index = tuple(
        slice(draw(st.integers(0, 3)), draw(st.integers(0, 6)), draw(st.integers(1, 2)))
        for _ in range(3)
    )
    x = base[index].permute(draw(st.permutations(range(3))))
    return x.unsqueeze(0).expand(3, -1, -1, -1) if draw(st.booleans()) else x


@settings(deadline=None)
@given(views())
def test_views_are_described_as_they_are(x):
    desc = ADAPTER.describe(x, "x")
    assert (desc.shape, desc.stride, desc.name) == (tuple(x.shape), x.stride(), "x")
    assert (desc.dtype, desc.device) == (as_dtype(x.dtype), CPU)
    assert desc.is_contiguous() == x.is_contiguous()
    assert ADAPTER.data_pointer(x) == x.data_ptr()


def test_who_else_has_a_hold_on_memory(monkeypatch):
    x = torch.zeros(8)
    with torch.inference_mode():
        inference = torch.zeros(8)
    for alone in (x, torch.nn.Parameter(torch.zeros(8)), inference):
        assert not ADAPTER.is_shared(alone)
    for other in (x[2:], x.view(2, 4), x.detach(), x.data, torch.from_dlpack(x)):
        assert ADAPTER.is_shared(x)
        assert ADAPTER.is_shared(other)
    del other
    assert not ADAPTER.is_shared(x)
    seen = x.numpy()
    assert ADAPTER.is_shared(x)
    assert ADAPTER.is_shared(torch.from_numpy(seen.copy())) and ADAPTER.is_shared(torch.ones(8)[2:])
    monkeypatch.setattr(torch_adapter, "_holds", None)
    assert ADAPTER.is_shared(torch.zeros(8)), "torch cannot tell"


@settings(deadline=None)
@given(views(), views())
def test_the_key_separates_what_the_description_separates(x, y):
    assert (ADAPTER.metadata(x) == ADAPTER.metadata(y)) == (
        ADAPTER.describe(x) == ADAPTER.describe(y)
    )
    assert ADAPTER.key([x, y]) == (ADAPTER.metadata(x), ADAPTER.metadata(y))
    assert hash(ADAPTER.key([x, y])) == hash(ADAPTER.key((x, y)))


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "float4_e2m1fn"])
def test_empty_under_a_fake_mode_is_fake_on_every_device(dtype):
    """As torch.compile's fake kernels call it, for a GPU that need not be there."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    for device in ("cpu", "cuda:0"):
        with FakeTensorMode():
            made = ADAPTER.empty(TensorDesc.of(dtype, (4, 64), device=device))
        assert isinstance(made, FakeTensor)
        assert str(made.device) == device
        assert ADAPTER.describe(made).shape == (4, 64)


def test_the_key_tells_devices_apart():
    assert ADAPTER.metadata(torch.empty(2)) != ADAPTER.metadata(torch.empty(2, device="meta"))


def test_packed_fp4_is_described_in_codes():
    k_major = torch.empty_strided((16, 32, 2), (32, 1, 512), dtype=FP4)
    m_major = torch.empty_strided((8, 32, 2), (1, 8, 256), dtype=FP4)
    assert ADAPTER.describe(k_major).shape == (16, 64, 2)
    assert ADAPTER.describe(k_major).stride == (64, 1, 1024)
    assert ADAPTER.describe(m_major).shape == (16, 32, 2)
    assert ADAPTER.describe(m_major).stride == (1, 16, 512)
    assert ADAPTER.describe(k_major).dtype == "float4_e2m1fn"
    with pytest.raises(RuntimeError, match="x: packed FP4 needs a dimension of stride 1"):
        ADAPTER.describe(torch.empty_strided((4, 4), (8, 2), dtype=FP4), "x")


def test_a_uint8_container_stays_what_it_shows():
    desc = ADAPTER.describe(torch.empty(16, 32, dtype=torch.uint8))
    assert (desc.shape, desc.dtype) == ((16, 32), as_dtype("uint8"))


def test_what_no_operation_takes_is_refused_by_name():
    with pytest.raises(ValueError, match=r"x dtype: expected a dtype.*torch\.complex64"):
        ADAPTER.describe(torch.empty(2, dtype=torch.complex64), "x")
    with pytest.raises(ValueError, match="x: expected a strided tensor, got torch.sparse_coo"):
        ADAPTER.describe(torch.eye(3).to_sparse(), "x")
    with pytest.raises(ValueError, match=r"x: expected a tensor whose memory holds .*resolve_neg"):
        ADAPTER.describe(torch.ones(3, dtype=torch.complex64).conj().imag, "x")


@settings(deadline=None)
@given(views())
def test_the_numpy_view_shares_memory(x):
    view = ADAPTER.to_numpy(x)
    assert view.shape == tuple(x.shape)
    assert view.dtype == as_dtype(x.dtype).numpy()
    if x.numel():
        assert view.__array_interface__["data"][0] == x.data_ptr()
        assert view.strides == tuple(s * x.element_size() for s in x.stride())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writing_through_the_numpy_view_reaches_the_tensor(dtype):
    x = torch.zeros(3, 4, dtype=torch.float32).to(dtype)[:, 1:]
    ADAPTER.to_numpy(x)[...] = 1
    assert (x.to(torch.float32) == 1).all()


def test_the_numpy_view_of_fp4_is_its_bytes():
    x = torch.empty(3, 4, dtype=FP4)
    ADAPTER.to_numpy(x)[...] = 0x21
    assert (x.view(torch.uint8) == 0x21).all()
    assert ADAPTER.to_numpy(x).dtype == np.uint8


def test_the_numpy_view_ignores_autograd_and_refuses_other_devices():
    x = torch.zeros(2, requires_grad=True)
    assert ADAPTER.to_numpy(x * 2).tolist() == [0, 0]
    with pytest.raises(ValueError, match="expected a tensor on the CPU, got one on meta"):
        ADAPTER.to_numpy(torch.zeros(2, device="meta"))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3), st.sampled_from(DTYPES), st.integers(0, 3)
)
def test_empty_has_exactly_the_strides_asked_for(shape, dtype, gap):
    stride, step = [], 1
    for extent in shape:  # innermost first, with gaps
        stride.append(step)
        step = step * max(extent, 1) + gap
    desc = TensorDesc.of(dtype, shape, stride)
    assert ADAPTER.describe(ADAPTER.empty(desc)) == desc


def test_fp4_is_allocated_packed_in_the_container_asked_for():
    desc = TensorDesc.of("float4_e2m1fn", (3, 8, 2), (8, 1, 24))
    native = ADAPTER.full(desc, 1.5)
    assert (native.dtype, native.shape, native.stride()) == (FP4, (3, 4, 2), (4, 1, 12))
    assert (native.view(torch.uint8) == 0x33).all()
    assert ADAPTER.describe(native) == desc
    as_bytes = TensorDesc.of("uint8", (3, 4)).as_fp4()
    made = ADAPTER.empty(as_bytes)
    assert (made.dtype, made.shape) == (torch.uint8, (3, 4))


@pytest.mark.parametrize("dtype", [*DTYPES, FP4], ids=str)
def test_initial_values_and_zeros_in_every_dtype(dtype):
    make = ADAPTER.allocator(TensorDesc.of(dtype, (4, 2)), 1.0)
    x = make()
    assert make() is not x
    one = 0x22 if dtype is FP4 else as_dtype(dtype).numpy().type(1)
    assert (ADAPTER.to_numpy(x) == one).all()
    ADAPTER.zero(x)
    assert (ADAPTER.to_numpy(x).view(np.uint8) == 0).all()


@pytest.mark.parametrize("dtype", [*DTYPES, FP4], ids=str)
def test_deterministic_mode_does_not_disturb_allocation(dtype):
    desc = TensorDesc.of(dtype, (4, 8))
    torch.use_deterministic_algorithms(True)  # fills new memory, where torch knows how to
    try:
        assert ADAPTER.describe(ADAPTER.empty(desc)) == desc
        assert ADAPTER.describe(ADAPTER.full(desc, 1.0)) == desc
    finally:
        torch.use_deterministic_algorithms(False)


def test_amax_starts_below_every_number():
    x = ADAPTER.full(TensorDesc.of("float32", (1, 1, 1)), float("-inf"))
    assert x.item() == float("-inf")
    ADAPTER.clamp_min(x, 0.0)
    assert x.item() == 0.0
    x.fill_(float("nan"))
    ADAPTER.clamp_min(x, 0.0)
    assert x.isnan().all()


def test_versions_count_writes():
    x = torch.zeros(2)
    before = ADAPTER.version(x)
    x.add_(1)
    assert ADAPTER.version(x) == before + 1
    with torch.inference_mode():
        assert ADAPTER.version(torch.zeros(2)) == 0


def test_the_cpu_has_no_streams():
    x = torch.zeros(2)
    assert ADAPTER.stream_handle(None, CPU) == 0
    ADAPTER.keep_alive([x, None], 0)
    with ADAPTER.guard(CPU), ADAPTER.on_stream(None, CPU):
        pass


# when a call needs the op


class Sub(torch.Tensor):
    pass


def test_plain_tensors_need_no_op():
    x = torch.zeros(2)
    assert not ADAPTER.needs_op([x, None, torch.nn.Parameter(x)])
    assert not ADAPTER.is_subclass(torch.nn.Parameter(x))
    assert not ADAPTER.watches()


def test_subclasses_need_the_op():
    x = torch.zeros(2).as_subclass(Sub)
    assert adapter_of(x) is ADAPTER
    assert ADAPTER.is_subclass(x)
    assert ADAPTER.needs_op([torch.zeros(2), x])


def test_fake_tensors_and_transforms_need_the_op():
    from torch._subclasses import FakeTensorMode

    x, seen = torch.zeros(2), []
    with FakeTensorMode(allow_non_fake_inputs=True):
        seen.append(ADAPTER.needs_op([x]))
    torch.vmap(lambda y: seen.append(ADAPTER.needs_op([y])) or y)(torch.zeros(2, 2))
    torch.fx.experimental.proxy_tensor.make_fx(
        lambda y: seen.append(ADAPTER.needs_op([y])) or y + 1
    )(x)
    assert seen == [True, True, True]
    assert not ADAPTER.needs_op([x])


def test_a_first_call_may_come_from_inside_a_compiled_function(monkeypatch):
    """Dynamo traces the lookup of the adapter; nothing on the way may break the graph."""

    def f(x):
        return x + 1 if adapter_of(x).needs_op((x, None)) else x - 1

    monkeypatch.setattr(adapters, "_by_type", {})
    assert torch.compile(f, fullgraph=True, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
    assert f(torch.zeros(2)).tolist() == [-1, -1]


def test_symbolic_sizes_are_described_without_being_fixed():
    seen = []

    def traced(x, packed):
        guards = x.fake_mode.shape_env.guards if hasattr(x, "fake_mode") else []
        before = len(guards)
        desc = ADAPTER.describe(x, "x")
        made = ADAPTER.empty(TensorDesc.of("float32", desc.shape))
        new_guards = len(guards) - before
        seen.append((desc, ADAPTER.describe(packed), new_guards))
        return made, ADAPTER.empty(ADAPTER.describe(packed))

    arguments = torch.zeros(6, 4), torch.empty(6, 4, dtype=FP4)
    graph = torch.fx.experimental.proxy_tensor.make_fx(traced, tracing_mode="symbolic")(*arguments)
    desc, packed, new_guards = seen[0]
    assert isinstance(desc.shape[0], torch.SymInt) and isinstance(packed.shape[1], torch.SymInt)
    assert new_guards == 0
    other = torch.zeros(10, 3), torch.empty(10, 3, dtype=FP4)
    made, packed = graph(*other)
    assert (made.shape, packed.shape, packed.dtype) == ((10, 3), (10, 3), FP4)


# CUDA paths, with torch.cuda replaced where there is no GPU


class Context:
    def __init__(self, *what):
        self.what = what

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


@pytest.fixture
def cuda(monkeypatch):
    """torch's CUDA state as the adapter sees it: device 0 current; stream 64 current on both devices."""
    from cudnn_core.adapters import torch as module

    state = types.SimpleNamespace(device=0, stream=64, contexts=[], recorded=[])
    stream = types.SimpleNamespace
    monkeypatch.setattr(torch.cuda, "current_device", lambda: state.device)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: state.device, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda i: Context("device", i))
    monkeypatch.setattr(torch.cuda, "stream", lambda s: Context("stream", s))
    monkeypatch.setattr(
        torch.cuda, "default_stream", lambda i: stream(cuda_stream=0, of="default", index=i)
    )
    monkeypatch.setattr(
        torch.cuda,
        "current_stream",
        lambda i: stream(cuda_stream=state.stream, of="current", index=i),
    )
    monkeypatch.setattr(
        torch.cuda,
        "ExternalStream",
        lambda h, device: stream(cuda_stream=h, of="external", index=device),
    )
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: state.stream, raising=False
    )
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: state.device, raising=False)
    monkeypatch.setattr(module.device_info, "ensure_context", state.contexts.append)
    monkeypatch.setattr(module, "_thread", types.SimpleNamespace())
    return state


def test_the_guard_acts_only_for_another_device(cuda):
    assert ADAPTER.guard(CUDA0) is ADAPTER.guard(CPU)
    assert ADAPTER.guard(Device("cuda", 1)).what == ("device", 1)


def test_a_thread_gets_its_context_once(cuda):
    ADAPTER.guard(CUDA0)
    ADAPTER.guard(CUDA0)
    assert cuda.contexts == [0]


def test_a_stream_is_ready_where_its_device_is_current_and_the_thread_has_a_context(cuda):
    first, second = (ADAPTER.ready_stream(Device("cuda", index)) for index in (0, 1))
    assert first() is None
    ADAPTER.guard(CUDA0)
    assert first() == 64 and second() is None
    cuda.device = 1
    assert second() == 64 and first() is None
    assert ADAPTER.ready_stream(CPU)() == 0


def test_the_ready_stream_is_asked_for_anew(cuda):
    current = ADAPTER.ready_stream(CUDA0)
    ADAPTER.guard(CUDA0)
    assert current() == 64
    cuda.stream = 0
    assert current() == 0


def test_the_current_stream_needs_no_context(cuda):
    nothing = ADAPTER.guard(CPU)
    assert ADAPTER.on_stream(None, CUDA0) is nothing
    assert ADAPTER.on_stream(64, CUDA0) is nothing
    cuda.stream = 0
    assert ADAPTER.on_stream(0, CUDA0) is nothing
    assert ADAPTER.on_stream(1, CUDA0) is nothing
    assert ADAPTER.on_stream(None, Device("cuda", 1)).what == ("device", 1)


@pytest.mark.parametrize("handle, of", [(0, "default"), (1, "default"), (96, "external")])
def test_another_stream_becomes_the_torch_stream_of_that_handle(cuda, handle, of):
    kind, stream = ADAPTER.on_stream(handle, Device("cuda", 1)).what
    assert (kind, stream.of, stream.index) == ("stream", of, 1)
    assert stream.cuda_stream == (0 if of == "default" else handle)


def test_the_per_thread_stream_is_refused_before_anything_happens(cuda):
    for use in (ADAPTER.on_stream, lambda s, d: ADAPTER.launcher(print, d)((), s)):
        with pytest.raises(ValueError, match="per-thread"):
            use(2, CUDA0)


def test_launches_pass_the_handle_and_switch_devices(cuda):
    calls = []
    launch = ADAPTER.launcher(lambda *arguments: calls.append(arguments), CUDA0)
    launch(("a", "b"), None)
    launch(("a",), 96)
    cuda.device = 1
    launch((), None)
    assert calls == [("a", "b", 64), ("a", 96), (64,)]
    assert cuda.contexts == [0]


def test_arrays_are_recorded_on_the_stream_that_uses_them(cuda):
    def fake(device):
        return types.SimpleNamespace(
            is_cuda=device.type == "cuda",
            device=device,
            record_stream=lambda s: cuda.recorded.append((device.index, s.of)),
        )

    arrays = [fake(torch.device("cuda", 1)), None, fake(torch.device("cpu"))]
    for handle in (64, 0, 96):
        ADAPTER.keep_alive(arrays, handle)
    assert cuda.recorded == [(1, "current"), (1, "default"), (1, "external")]


@pytest.mark.gpu
class TestOnGpu:
    def test_streams(self):
        side = torch.cuda.Stream()
        assert ADAPTER.stream_handle(None, CUDA0) == torch.cuda.current_stream().cuda_stream
        with torch.cuda.stream(side):
            assert ADAPTER.current_stream(CUDA0) == side.cuda_stream
        before = torch.cuda.current_stream()
        for stream in (side, side.cuda_stream, torch.cuda.ExternalStream(side.cuda_stream)):
            with ADAPTER.on_stream(stream, CUDA0):
                assert torch.cuda.current_stream().cuda_stream == side.cuda_stream
            assert torch.cuda.current_stream() == before
        with torch.cuda.stream(side), ADAPTER.on_stream(0, CUDA0):
            assert torch.cuda.current_stream() == torch.cuda.default_stream()

    @pytest.mark.parametrize("side", [False, True])
    @pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 1)])
    def test_filled_words_are_fresh_whatever_torch_defaults_to(self, shape, side):
        """More calls than one block of ready scalars holds; each element starts anew and alone."""
        desc = TensorDesc.of("float32", shape, device=CUDA0)
        make = ADAPTER.allocator(desc, float("-inf"))
        with ADAPTER.guard(CUDA0):
            pass  # as every call does before it allocates: the thread has a context now
        torch.set_default_dtype(torch.float64)
        try:
            with torch.cuda.stream(torch.cuda.Stream() if side else torch.cuda.default_stream()):
                made = []
                for _ in range(150):
                    x = make()
                    assert ADAPTER.describe(x) == desc
                    assert not x.is_inference() and x._version == 0
                    assert x.storage_offset() == 0 and x.data_ptr() % 16 == 0
                    assert x.isneginf().all()
                    x.fill_(7.0)
                    made.append(x)
        finally:
            torch.set_default_dtype(torch.float32)
        assert len({x.data_ptr() for x in made}) == 150
        assert all(x._version == 1 and x.eq(7).all() for x in made)

    def test_recorded_memory_is_not_reused_while_the_stream_works(self):
        side = torch.cuda.Stream()
        x = torch.ones(1 << 20, device="cuda")
        x.sum()  # loads its kernel now: loading later would wait for the sleep to end
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            total = x.sum()
        ADAPTER.keep_alive([x, None], side.cuda_stream)
        pointer = x.data_ptr()
        del x
        y = torch.zeros(1 << 20, device="cuda")
        assert y.data_ptr() != pointer
        torch.cuda.synchronize()
        assert total.item() == 1 << 20

    def test_a_new_thread_gets_a_context(self):
        import ctypes
        import threading

        found = []

        def work():
            with ADAPTER.guard(CUDA0):
                context = ctypes.c_void_p()
                ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
                found.append(context.value)

        torch.zeros(1, device="cuda")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found[0] is not None

    @pytest.mark.parametrize("dtype", [*DTYPES, FP4], ids=str)
    def test_allocation(self, dtype):
        desc = TensorDesc.of(dtype, (4, 32, 2), (32, 1, 128), device=CUDA0)
        x = ADAPTER.full(desc, 1.0)
        assert ADAPTER.describe(x) == desc
        ADAPTER.zero(x)
        on_host = np.ascontiguousarray(ADAPTER.to_numpy(x.cpu()))
        assert not on_host.view(np.uint8).any()
        with pytest.raises(ValueError, match="got one on cuda:0"):
            ADAPTER.to_numpy(x)

    def test_calls_make_no_synchronization_and_can_be_captured(self):
        desc = TensorDesc.of("float32", (8,), device=CUDA0)
        launch = ADAPTER.launcher(lambda t, handle: t.add_(1), CUDA0)
        launch((ADAPTER.full(desc, 3.0),), None)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.cuda.set_sync_debug_mode("error")
            try:
                x = ADAPTER.full(desc, 3.0)
                launch((x,), None)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        graph.replay()
        assert x.tolist() == [4.0] * 8

    def test_the_other_device(self):
        if torch.cuda.device_count() < 2:
            pytest.skip("needs two GPUs")
        device = Device("cuda", 1)
        seen = []
        launch = ADAPTER.launcher(lambda handle: seen.append(torch.cuda.current_device()), device)
        launch((), None)
        assert seen == [1] and torch.cuda.current_device() == 0
        with pytest.raises(ValueError, match="expected a stream of cuda:1"):
            launch((), torch.cuda.Stream(0))


# --- scratch memory --------------------------------------------------------------------------------------------------


def scratch(*sizes, initial=None):
    """The scratch memory of calls on cuda:0, by the handle of their stream."""
    descs = [Workspace(nbytes).describe(CUDA0) for nbytes in sizes]
    return ADAPTER.scratch(descs, [initial] * len(sizes))


@pytest.fixture
def pretended(monkeypatch):
    """The device's memory is the host's."""

    def empty(shape, stride, dtype):
        return torch.empty(shape, dtype=dtype)

    monkeypatch.setattr(torch_adapter, "_empty_on_current_gpu", empty)
    monkeypatch.setattr(torch_adapter, "_thread", threading.local())


def test_small_scratch_memory_is_kept_on_the_default_stream_only(pretended):
    make = scratch(4096)
    (first,), (second,) = make(0), make(0)
    assert first is second and first.numel() == 4096
    assert make(7)[0] is not first and make(7)[0] is not make(7)[0]
    large = scratch(torch_adapter.KEPT_BYTES, 1)
    assert large(0)[0] is not large(0)[0]


def test_no_two_workspaces_of_calls_of_a_kind_are_the_same(pretended):
    first, second = scratch(64, 64)(0)
    assert first is not second
    assert scratch(64)(0)[0] is not first
    assert scratch(64, 64)(0) == (first, second)


def test_each_thread_has_its_own_scratch_memory(pretended):
    make, others = scratch(64), []
    thread = threading.Thread(target=lambda: others.extend(make(0)))
    thread.start()
    thread.join()
    assert others[0] is not make(0)[0]


def test_scratch_memory_of_many_kinds_is_given_back(pretended):
    for nbytes in range(1, 10 * torch_adapter.KEPT_KINDS):
        scratch(nbytes)(0)
    assert len(torch_adapter._thread.scratch) <= torch_adapter.KEPT_KINDS


def test_scratch_memory_that_starts_as_zeros_is_made_anew(pretended):
    descs = [Workspace(64).describe(CPU)] * 2
    for _ in range(2):
        zeroed, _ = ADAPTER.scratch(descs, [0.0, None])(0)
        assert not zeroed.any()
        zeroed.fill_(7)
