"""The product of every fused dense GEMM: core's bodies and the expansion, put together for any two sides.

May import the CuTe DSL and cudnn_core.hopper; loaded only to compile.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from cudnn_core.hopper import arguments
from cudnn_core.hopper.decoded import DecodedBody
from cudnn_core.hopper.expand import Expand, Expansion
from cudnn_core.hopper.feed import FedArgs, FedBody, Feed
from cudnn_core.hopper.gemm import HopperGemm
from cudnn_core.hopper.matrix import MatrixOperand
from cudnn_core.hopper.operand import BlockScaledOperand
from cudnn_core.hopper.plain import PlainBody
from cudnn_core.hopper.rules import UNIT, unit_of
from cudnn_core.hopper.schedule import DenseSchedule
from cudnn_core.hopper.stream import StreamSchedule
from cudnn_core.hopper.tile import SHARED_MEMORY
from cudnn_core.hopper.tile import why_not as tile_why_not
from cudnn_core.hopper.workspace import expanded_bytes, flag_bytes, following, partial_bytes

from .config import Product, Side, scratch

# Shared memory for barriers and alignment.
MARGIN = 2048
FEWEST_STAGES = 2
# Tiles of at most so many rows are for activations that are few beside the multiprocessors: writing those out is a
# matter of latency.
FEW = 64


def block_scaled(side: Side, batch: str) -> BlockScaledOperand:
    """The side as the decoder and the expansion see it."""
    return BlockScaledOperand(
        element=side.dtype,
        scale=side.scale,
        sf_vec=side.sf_vec,
        contiguous=side.contiguous,
        container=side.container,
        sf_form=side.sf_form,
        batch=batch,
    )


def body_of(product: Product) -> DecodedBody | PlainBody:
    """The main loop."""
    (left, right), (along_m, along_n) = product.treatments, product.tile.cluster
    a = matrix(product, product.a, left, along_n)
    apart = product.glu == "concatenated"
    if product.decodes:
        weights = replace(block_scaled(product.b, product.batch), glu=apart)
        if right is not None:
            weights = replace(weights, contiguous="k", batch="last")
        follows = (right is not None, left is not None)
        glu = product.glu is not None
        return DecodedBody(product.tile, weights, a, glu, follows, product.sorts)
    b = replace(matrix(product, product.b, right, along_m), glu=apart)
    if product.feeds:
        sides = tuple(
            None if target is None else Expand(block_scaled(side, product.batch), target)
            for side, target in ((product.a, left), (product.b, right))
        )
        return FedBody(product.tile, a, b, Feed(product.tile, sides, apart))
    return PlainBody(product.tile, a, b)


def matrix(product: Product, side: Side, rewritten: str | None, sharers: int) -> MatrixOperand:
    """The side as the tensor core reads it from shared memory."""
    if rewritten is not None:
        return MatrixOperand(rewritten, sharers=sharers)
    return MatrixOperand(side.dtype, side.contiguous, product.batch, sharers=sharers)


def why_not(product: Product, epilogue: Any) -> str | None:
    """The reason why no kernel can be built, or None."""
    reason = product.why_not() or tile_why_not(product.tile)
    if reason is not None:
        return reason
    body = body_of(product)
    reason = body.why_not() or epilogue.why_not()
    if reason is not None:
        return reason
    if body.smem_bytes() + epilogue.smem_bytes() + MARGIN > SHARED_MEMORY:
        return "the rings and the output staging need more shared memory than there is"
    return None


def shorter(product: Product) -> Iterator[Product]:
    """The product with its rings as deep as asked for, then ever shorter ones."""
    tile = product.tile
    deepest = max(tile.stages, tile.raw_stages if product.decodes else 0)
    for most in range(deepest, FEWEST_STAGES - 1, -1):
        made = replace(tile, stages=min(most, tile.stages))
        if product.decodes:
            made = replace(made, raw_stages=min(most, tile.raw_stages))
        yield replace(product, tile=made)


def schedule_of(product: Product) -> DenseSchedule:
    """In which order thread blocks take tiles, or parts of them."""
    if product.split is None:
        return DenseSchedule(product.tile)
    unit = unit_of(product.tile, product.b.bits) if product.decodes else UNIT
    return StreamSchedule(product.tile, unit, max(1, product.split * UNIT // unit))


@dataclass(frozen=True)
class Operands:
    """Run-time values of a product: what the kernel takes for its two sides, and the extents."""

    first: Any
    second: Any
    m: Int32
    n: Int32
    k: Int32


class Multiply:
    """A product with an epilogue: what an op's host function calls.

    more: names of regions that the epilogue's resources take at the end of the workspace; the last may be of any size.
    """

    def __init__(self, product: Product, epilogue: Any, more: tuple[str, ...] = ()):
        reason = why_not(product, epilogue)
        if reason is not None:
            raise NotImplementedError(reason)
        self.product, self.epilogue, self.body = product, epilogue, body_of(product)
        schedule = schedule_of(product)
        # Not after a kernel that keeps multiprocessors busy, with plain operands: thread blocks that start wherever one
        # comes free are no neighbours any more, and ask more of the L2 cache (on an H200 products of 128x128 tiles took
        # more than a third longer). What takes counters down is short enough, and waited for before they are read.
        follows = product.feeds or (product.decodes and any(product.treatments))
        self.gemm = HopperGemm(product.tile, self.body, schedule, epilogue, follows)
        scaled = ("sfa" if product.a.scale else None, "sfb" if product.b.scale else None)
        self.inputs = ("a", "b", *filter(None, scaled))
        self.regions = (*scratch(product), *more)
        self.scratch = ("workspace",) if self.regions else ()

    @cute.jit
    def prepare(self, tensors: cutlass.Constexpr, blocks: Int32, stream):
        """On the host: expand what must be ahead, and make tensor maps; (operands, regions of the workspace by name).

        tensors: those of `inputs` and `scratch` by name. blocks: those for which `launch` may have room.
        """
        product, tile, body = self.product, self.product.tile, self.body
        sides = {"a": tensors["a"], "b": tensors["b"]}
        used, expands, written = Int64(0), [], []
        for name, target in zip("ab", product.treatments, strict=True):
            if cutlass.const_expr(target is not None):
                activations = cutlass.const_expr(product.decodes and name == "a")
                meets = body.weights.decoder if activations else None
                operand = block_scaled(getattr(product, name), product.batch)
                expand = Expand(operand, target, meets, few=activations and tile.bm <= FEW)
                place = (tensors["workspace"].iterator + used).align(16)
                args, made = expand.prepare(sides[name], tensors.get(f"sf{name}"), place)
                expands.append(expand)
                written.append(args)
                used += expanded_bytes(made.shape[0], Int64(made.shape[1]), made.shape[2], target)
                sides[name] = made
        counted = body.feed.bytes(written) if cutlass.const_expr(product.feeds) else 0
        regions = self.cut(tensors.get("workspace"), used, counted, Int64(blocks))
        feed = None
        if cutlass.const_expr(product.feeds):
            feed = body.feed.prepare(written, regions["counters"], blocks, stream)
        elif cutlass.const_expr(expands):
            Expansion(tuple(expands)).launch(tuple(written), stream)
        if cutlass.const_expr(product.decodes):
            a = body.activations.prepare(sides["a"], tile.bm)
            b = body.weights.prepare(sides["b"], tensors["sfb"], tile.bn)
            return Operands(b, a, a.extent, b.extent, b.k), regions
        a, b = body.a.prepare(sides["a"], tile.bm), body.b.prepare(sides["b"], tile.bn)
        if cutlass.const_expr(product.feeds):
            a = FedArgs(a.tma_atom, a.tma_tensor, a.extent, a.k, a.batches, feed)
        return Operands(a, b, a.extent, b.extent, a.k), regions

    def cut(
        self, workspace, expanded: Int64, counters: Int64, blocks: Int64
    ) -> dict[str, cute.Tensor]:
        """The regions of the workspace by name; expanded, counters: bytes of those regions."""
        tile, made, at = self.product.tile, {}, Int64(0)
        sizes = {
            "expanded": expanded,
            "counters": counters,
            "partials": partial_bytes(tile, blocks),
            "flags": flag_bytes(tile, blocks),
        }
        for name in self.regions:
            made[name] = cute.make_tensor((workspace.iterator + at).align(256), workspace.layout)
            at = following(at + sizes.get(name, 0))
        return made

    @cute.jit
    def launch(
        self,
        operands: Operands,
        regions: cutlass.Constexpr,
        batches,
        epilogue,
        blocks: Int32,
        stream,
    ):
        """On the host: run the main loop. epilogue: what the resources' `prepare` returned."""
        shared = []
        if cutlass.const_expr(self.product.split is not None):
            shared = [regions["partials"], regions["flags"], blocks]
        schedule = self.gemm.schedule.prepare(
            operands.m, operands.n, operands.k, Int32(batches), *shared
        )
        self.gemm.launch(operands.first, operands.second, schedule, epilogue, blocks, stream)

    def fake_inputs(self, m, n, k) -> list:
        """Symbolic tensors of `inputs`; m, n, k: symbols shared with the outputs."""
        product = self.product
        placing = {"batched": product.batched, "batch": product.batch}
        made = [
            arguments.matrix(
                rows,
                k,
                side.dtype,
                side.container,
                "second" if side.contiguous == "k" else "first",
                **placing,
            )
            for side, rows in ((product.a, m), (product.b, n))
        ]
        for side in (product.a, product.b):
            if side.scale is not None:
                made.append(
                    arguments.scales(side.scale, side.sf_container, side.sf_form, product.batched)
                )
        return made

    def fake_scratch(self) -> list:
        """The symbolic tensor of `scratch`."""
        return [arguments.workspace() for _ in self.scratch]

    def expected_instructions(self) -> tuple[str, ...]:
        """What the machine code must contain."""
        product = self.product
        loads = ("UBLKCP",) if product.decodes else ()
        return ("QGMMA" if product.meeting is None else "HGMMA", "UTMALDG", *loads)
