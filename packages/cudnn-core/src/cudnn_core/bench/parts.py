"""What the families' cases are made of: the check of a result, bytes, copies as bounds, graphs. Imports torch late."""

from typing import Any

from .protocol import Absent, Call, Maker, WrongResult

# The bound of what is limited by memory: a copy that reads half as many bytes and writes the other half.
COPY = "copy of as many bytes"

# Largest relative error of one rounding to nearest: half a unit in the last place, at the bottom of a binade.
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11, "float8_e4m3fn": 2.0**-4}


def judge(what: str, got: Any, exact: Any, rounding: float, noise: float) -> None:
    """Raise WrongResult unless every |got - exact| is at most rounding |exact| + noise rms(exact). NaN is wrong.

    got: a tensor of any dtype; exact: float64 of the same shape. rounding: of the last step, for example
    ROUNDING["bfloat16"]; noise: the error of sums before it, relative to the size of the whole result.
    """
    if got.shape != exact.shape:
        raise WrongResult(f"{what} has shape {tuple(got.shape)}, expected {tuple(exact.shape)}")
    error = (got.double() - exact).abs()
    allowed = rounding * exact.abs() + noise * exact.square().mean().sqrt()
    # The comparison is written so that NaN on either side is not within.
    outside = ~(error <= allowed)
    if bool(outside.any()):
        worst = (error / allowed).nan_to_num(nan=float("inf")).max().item()
        share = outside.double().mean().item()
        raise WrongResult(
            f"{what}: {share:.2%} of the elements are beyond their tolerance, the worst {worst:.3g} times"
        )


def nbytes(*tensors: Any) -> int:
    """Bytes of the tensors' elements; None counts as nothing."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def copy_of(count: float, device: str) -> Maker:
    """A maker of the copy that moves `count` bytes, on random bytes."""

    def make() -> Call:
        import torch

        source = torch.randint(-128, 128, (max(1, int(count) // 2),), dtype=torch.int8)
        source = source.to(device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return make


def replay(call: Call) -> Call | Absent:
    """One call captured as a CUDA graph: the replay of it."""
    import torch

    if not torch.cuda.is_available():
        return Absent("CUDA graphs need a CUDA device")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    # The warm calls that capture asks for: what compiles or allocates lazily does so here.
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()

    def run() -> Any:
        graph.replay()
        return kept

    return run
