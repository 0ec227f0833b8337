"""What the rest of the code may ask of a framework. Imports no framework."""

import abc
import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar

from .. import streams
from ..dtypes import FLOAT4_E2M1FN, UINT8, DType
from ..tensor_desc import Device, TensorDesc, physical_fp4

__all__ = ["NOTHING_TO_GUARD", "Adapter", "container", "element", "refuse_unpacked_fp4"]

NOTHING_TO_GUARD = contextlib.nullcontext()


def container(desc: TensorDesc, *, packed_dtype: bool) -> tuple[Any, tuple, tuple]:
    """(dtype, shape, stride) of the array that stores `desc`: FP4 codes come two in a byte.

    packed_dtype: the framework has a dtype for packed FP4; otherwise, and for descriptors that ask
    for it, the bytes are uint8.
    """
    if not desc.dtype.is_fp4:
        return desc.dtype, desc.shape, desc.stride
    shape, stride = physical_fp4(desc.shape, desc.stride)
    native = packed_dtype and not desc.interpret_uint8_as_fp4x2
    return (desc.dtype if native else UINT8), shape, stride


def element(dtype: DType, value: float) -> Any:
    """`value` as one NumPy element of `dtype`'s container: for FP4, a byte with the code twice."""
    import numpy as np

    converted = np.asarray(value).astype(dtype.numpy())
    return converted.view(np.uint8) * np.uint8(0x11) if dtype.is_fp4 else converted


def refuse_unpacked_fp4(dtype: DType, name: str) -> None:
    """`ValueError` for an array with one FP4 code a byte, which no operation takes."""
    if dtype is FLOAT4_E2M1FN:
        raise ValueError(
            f"{name or 'array'}: expected packed FP4, a uint8 array with two codes in a byte, "
            f"got an unpacked float4_e2m1fn array; cudnn.quantize makes packed ones"
        )


class Adapter(abc.ABC):
    """One framework. Stateless; there is one instance of each subclass.

    Streams are plain integer handles. Every method that takes an array takes only arrays of this
    framework.
    """

    name: ClassVar[str]
    # Whether the framework has a dtype for two FP4 codes in a byte.
    packs_fp4: ClassVar[bool] = False
    # Whether `is_writable` may say no.
    has_read_only: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def namespace(self) -> Any:
        """The framework's module of array functions, of those names that all of them have."""

    def steps(self, count: int, beside: Any) -> Any:
        """The integers 0..count-1, on the device of the array `beside`."""
        return self.namespace.arange(count)

    def detached(self, x: Any) -> Any:
        """`x` itself, to compute with while no gradient is recorded."""
        return x

    @abc.abstractmethod
    def describe(self, x: Any, name: str = "") -> TensorDesc:
        """Logical metadata. Packed FP4 is described in codes; uint8 stays uint8, as it is."""

    @abc.abstractmethod
    def metadata(self, x: Any) -> Hashable:
        """What `describe` depends on, as a cheap key: dtype, shape, strides, device."""

    def key(self, arrays: Iterable[Any]) -> tuple:
        """`metadata` of several arrays, with the cost of one call; None stands for itself."""
        return tuple(None if x is None else self.metadata(x) for x in arrays)

    def recognizer(self, arrays: Sequence[Any]) -> Callable[..., bool] | None:
        """same(*others): True only for arrays whose `metadata` are those of `arrays`, at a fraction of a key's cost.

        A wish for a gradient counts as metadata here. It may say False of equal ones. None where the framework has no
        such thing.
        """
        return None

    @abc.abstractmethod
    def device(self, x: Any) -> Device:
        """Where `x` lives."""

    @abc.abstractmethod
    def allocator(
        self, desc: TensorDesc, initial: float | None = None, *, guarded: bool = False
    ) -> Callable[[], Any]:
        """A function that makes arrays with exactly the metadata of `desc`.

        initial: the value of every element; None leaves them uninitialized. guarded: whoever calls the function has
        made the device current (`guard`).
        `ValueError` now, not later, when the framework has no such array.
        """

    def empty(self, desc: TensorDesc) -> Any:
        """One uninitialized array with exactly the metadata of `desc`."""
        return self.allocator(desc)()

    def full(self, desc: TensorDesc, value: float) -> Any:
        """One array with exactly the metadata of `desc` and every element equal to `value`."""
        return self.allocator(desc, value)()

    def zero(self, x: Any) -> None:
        """Writes zeros into `x`."""
        self.to_numpy(x)[...] = 0

    def clamp_min(self, x: Any, bound: float) -> None:
        """Raises the elements of `x` below `bound` to it; NaN stays."""
        array = self.to_numpy(x)
        array[array < bound] = bound

    def assign(self, x: Any, source: Any) -> None:
        """Writes the content of `source` into `x`, in the framework's own way: its autograd sees it."""
        self.to_numpy(x)[...] = self.to_numpy(source)

    def scratch(
        self, descs: Sequence[TensorDesc], initial: Sequence[float | None]
    ) -> Callable[[int], tuple[Any, ...]]:
        """scratch(handle): a call's scratch memory; nobody else's until the work that it queues has ended.

        handle: of the stream on which it is to be used, which is the current one of the arrays' device.
        """
        makes = tuple(
            self.allocator(desc, value, guarded=True)
            for desc, value in zip(descs, initial, strict=True)
        )
        return lambda handle: tuple([make() for make in makes])

    def as_bytes(self, x: Any) -> Any:
        """A contiguous array as flat bytes over the same memory."""
        return x.reshape(-1).view("uint8")

    @abc.abstractmethod
    def data_pointer(self, x: Any) -> int:
        """Address of the first element, valid while `x` is alive."""

    def data_pointers(self, arrays: Iterable[Any]) -> tuple[int, ...]:
        """`data_pointer` of several arrays, with the cost of one call."""
        return tuple([self.data_pointer(x) for x in arrays])

    @abc.abstractmethod
    def to_numpy(self, x: Any) -> Any:
        """A NumPy array over the memory of the CPU array `x`: never a copy, writable where `x` is.

        Packed FP4 comes as uint8. `ValueError` for an array elsewhere: nothing is copied to the
        host unasked.
        """

    def is_writable(self, x: Any) -> bool:
        """Whether elements of `x` can be written in place."""
        return True

    def is_shared(self, x: Any) -> bool:
        """Whether others may have a hold on the memory of `x`, such as views of it or what it is a view of."""
        return True

    def version(self, x: Any) -> int:
        """A counter that grows when `x` is written through its framework; 0 where there is none."""
        return 0

    def written(self, x: Any) -> None:  # noqa: B027 - optional
        """Tells the framework that `x` was written behind its back: its `version` grows."""

    def resolved(self, arrays: Iterable[Any]) -> Iterable[Any]:
        """`arrays` with the numbers that they stand for in memory."""
        return arrays

    def tracks_gradient(self, arrays: Iterable[Any]) -> bool:
        """Whether the framework now records what is done with one of `arrays`, to differentiate it later."""
        return False

    def tracker(self, arrays: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
        """`tracks_gradient` of the arrays that a recognizer of `arrays` knows, at a fraction of its cost."""
        return self.tracks_gradient

    def unrecorded(self) -> contextlib.AbstractContextManager:
        """Inside the context the framework records nothing to differentiate later."""
        return NOTHING_TO_GUARD

    def current_stream(self, device: Device) -> int:
        """Handle of the stream on which the framework now queues work."""
        return 0

    def stream_handle(self, stream: Any, device: Device, argument: str = "stream") -> int:
        """Handle of a stream argument (see `streams.handle_of`); None is the current stream."""
        if stream is None:
            return self.current_stream(device)
        return streams.handle_of(stream, device, argument)

    def guard(self, device: Device) -> contextlib.AbstractContextManager:
        """Makes `device` current inside the context; does nothing when it is."""
        return NOTHING_TO_GUARD

    def ready_stream(self, device: Device) -> Callable[[], int | None]:
        """stream(): `current_stream`, or None where `guard` has to make `device` current in this thread first."""
        return functools.partial(self.current_stream, device)

    def on_stream(self, stream: Any, device: Device) -> contextlib.AbstractContextManager:
        """Makes the stream current inside the context, so that it owns what is allocated there.

        stream: a stream argument; None, and the current stream, leave the stream as it is.
        """
        return NOTHING_TO_GUARD

    def launcher(
        self,
        executable: Callable[..., None],
        device: Device,
        scalars: tuple[Any, ...] = (),
        scratch: Callable[[int], tuple[Any, ...]] | None = None,
    ) -> Callable[..., None]:
        """launch(arrays, stream, numbers=()): executable(*arrays, *scratch(handle), *numbers, *scalars, handle).

        `device` is current; so is the stream, where there is `scratch`.
        """

        def launch(arrays: Sequence[Any], stream: Any, numbers: Sequence[float] = ()) -> None:
            handle = self.stream_handle(stream, device)
            with self.guard(device):
                made = () if scratch is None else scratch(handle)
                executable(*arrays, *made, *numbers, *scalars, handle)

        return launch

    def restride(self, x: Any, stride: tuple[int, ...]) -> Any:
        """A view of `x` with other strides, which differ only where they address nothing."""
        raise NotImplementedError(f"{self.name} arrays have no views of other strides")

    def keep_alive(self, arrays: Iterable[Any], handle: int) -> None:  # noqa: B027 - optional
        """Tells the allocator: work on the stream uses `arrays`, even when they are dropped."""

    def has_no_data(self, arrays: Iterable[Any]) -> bool:
        """Whether `arrays` have no memory now: on torch's device "meta", fake, or while something traces the call."""
        return False

    def is_subclass(self, x: Any) -> bool:
        """Whether `x` has a type of its own that wants to see every operation on it."""
        return False

    def watches(self) -> bool:
        """Whether the framework sees every operation now, whatever it is called on."""
        return False

    def traces(self) -> bool:
        """`watches`, but where it does so in a way that a recognizer sees, it may say no."""
        return self.watches()

    def needs_op(self, arrays: Iterable[Any]) -> bool:
        """Whether a call on `arrays` must go through an op that the framework knows (`doors`)."""
        return False

    def deterministic(self) -> tuple[bool, bool]:
        """(deterministic algorithms are asked for, only warn where there is none)."""
        return False, False
