"""Plain scales to 128x4 atoms and back, over any array library. Imports only formats.spec.

An atom is 512 contiguous bytes: 128 rows by 4 blocks. Byte of row r, block c, batch l:

    ((l*R + r//128)*Q + c//4)*512 + (r%32)*16 + ((r%128)//32)*4 + c%4

with R = ceil(rows/128), Q = ceil(blocks/4). Two views of the same bytes: "physical"
(L, R, Q, 32, 4, 4), C-contiguous, and "logical" (32, 4, R, 4, Q, L), a permutation of it.
`ops` is the array library's namespace: permute, pad, contiguous (see numpy_ops and its like).
"""

from .spec import Geometry

TO_LOGICAL = (3, 4, 1, 5, 2, 0)
TO_PHYSICAL = (5, 2, 4, 0, 1, 3)


def pack(ops, plain):
    """(L, rows, blocks) bytes -> physical atoms; bytes of rows and blocks not there are 0."""
    batch, rows, blocks = plain.shape
    row_atoms, block_atoms = -(-rows // 128), -(-blocks // 4)
    padded = ops.pad(plain, row_atoms * 128 - rows, block_atoms * 4 - blocks)
    split = padded.reshape(batch, row_atoms, 4, 32, block_atoms, 4)
    return ops.contiguous(ops.permute(split, (0, 1, 4, 3, 2, 5)))


def unpack(ops, physical, rows: int, blocks: int):
    """Physical atoms -> (L, rows, blocks) bytes."""
    batch, row_atoms, block_atoms = physical.shape[:3]
    split = ops.permute(physical, (0, 1, 4, 3, 2, 5))
    padded = split.reshape(batch, row_atoms * 128, block_atoms * 4)
    return padded[:, :rows, :blocks]


def present(ops, plain, geo: Geometry, layout: str):
    """(L, rows, blocks) bytes -> the requested scale layout."""
    if layout == "plain":
        return restore(ops, plain, geo, geo.blocks)
    return present_atoms(ops, pack(ops, plain), layout)


def present_atoms(ops, physical, layout: str):
    """Physical atoms -> the requested view of them."""
    if layout == "atom":
        layout = ops.atom_view
    return ops.permute(physical, TO_LOGICAL) if layout == "logical" else physical


def absorb(ops, scale, geo: Geometry, layout: str, name: str = "scale"):
    """Scales in ``layout`` -> (L, rows, blocks) bytes; a wrong shape is a ValueError.

    The two views of atoms tell themselves apart by shape, so either is accepted for both.
    """
    if layout == "plain":
        check_shape(name, scale, {"plain": geo.with_k(geo.blocks)})
        return canonical(ops, scale, geo)
    check_shape(name, scale, {"logical": geo.logical, "physical": geo.physical})
    if tuple(scale.shape) == geo.logical:
        scale = ops.permute(scale, TO_PHYSICAL)
    return unpack(ops, scale, geo.rows, geo.blocks)


def check_shape(name: str, array, expected: dict[str, tuple[int, ...]]):
    if tuple(array.shape) not in expected.values():
        wanted = " or ".join(f"{shape} ({what})" for what, shape in expected.items())
        raise ValueError(f"{name}: expected shape {wanted}, got {tuple(array.shape)}")


def canonical(ops, array, geo: Geometry):
    """An array with the geometry's axes -> (L, rows, extent)."""
    extent = array.shape[geo.order[-1]]
    return ops.permute(array, geo.order).reshape(geo.batch, geo.rows, extent)


def restore(ops, array, geo: Geometry, extent: int):
    """(L, rows, extent) -> the caller's axes; only strides change."""
    return ops.permute(array.reshape(geo.ordered(extent)), geo.inverse)
