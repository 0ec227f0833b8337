"""y[i] = step * x[i]. Imports the DSL."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

THREADS = 128


@cute.kernel
def _scale(x: cute.Tensor, y: cute.Tensor, step: cutlass.Constexpr):
    i = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
    if i < x.shape[0]:
        y[i] = x[i] * step


class Scale:
    def __init__(self, step):
        self.step = step

    @cute.jit
    def __call__(self, x_tensor: cute.Tensor, y_tensor: cute.Tensor, stream: cuda.CUstream):
        blocks = cute.ceil_div(x_tensor.shape[0], THREADS)
        _scale(x_tensor, y_tensor, self.step).launch(
            grid=[blocks, 1, 1], block=[THREADS, 1, 1], stream=stream
        )


def fake_arguments():
    extent = cute.sym_int()

    def vector():
        return cute.runtime.make_fake_tensor(
            cutlass.Float32, (extent,), stride=(1,), assumed_align=4
        )

    return vector(), vector(), cute.runtime.make_fake_stream()
