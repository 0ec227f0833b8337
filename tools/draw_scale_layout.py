"""Draws docs/concepts/scale-layout.svg: where the scale of (row, block) lies in memory.

Run `python tools/draw_scale_layout.py` after changing it. May import the standard library only.
"""

from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "docs/concepts/scale-layout.svg"

INK, PAPER, MARK = "#263238", "#fafafa", "#c62828"
BANDS = ("#b3e5fc", "#c8e6c9", "#ffe0b2", "#e1bee7")  # rows 0-31, 32-63, 64-95, 96-127
ROW, BLOCK = 70, 2  # the scale followed through the picture
WIDTH, HEIGHT = 904, 440


def offset(row, block, block_atoms):
    """Byte of the scale of (row, block) in batch 0, for `block_atoms` atoms along K."""
    atom = (row // 128) * block_atoms + block // 4
    return atom * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + block % 4


def box(x, y, width, height, fill, stroke=INK, thickness=0.6):
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="{thickness}"/>'
    )


def text(x, y, words, size=12, anchor="middle", weight="normal", fill=INK):
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" fill="{fill}">{words}</text>'
    )


def caption(x, title, *lines):
    parts = [text(x, 34, title, 15, weight="bold")]
    return [*parts, *(text(x, 54 + 17 * i, line, 12) for i, line in enumerate(lines))]


def all_atoms(left, top):
    """The scale matrix of an operand, cut into atoms, each with the byte it starts at."""
    width, height, columns, rows = 74, 92, 3, 3
    parts = caption(left + 111, "Scales of one operand", "here 3 x 3 atoms: R = 3, Q = 3")
    for i in range(rows):
        for j in range(columns):
            first = i == j == 0
            x, y = left + j * width, top + i * height
            parts += [
                box(x, y, width, height, "#ffecb3" if first else "#eceff1"),
                text(x + width / 2, y + height / 2, f"byte {512 * (i * columns + j)}", 12),
            ]
        y = top + i * height + height / 2
        parts.append(text(left - 8, y, f"{128 * i}-{128 * i + 127}", 11, "end"))
    for j in range(columns):
        parts.append(text(left + j * width + width / 2, top - 8, f"blocks {4 * j}-{4 * j + 3}", 11))
    below = top + rows * height
    return [
        *parts,
        text(left - 8, top - 8, "rows", 11, "end"),
        text(left + 111, below + 24, "512-byte atoms in row-major order;", 12),
        text(left + 111, below + 41, "the last ones are padded", 12),
    ]


def one_atom(left, top):
    """An atom as rows x blocks: four bands of 32 rows."""
    width, band = 34, 69
    parts = caption(left + 68, "One atom", "128 rows x 4 blocks")
    for quarter, color in enumerate(BANDS):
        y = top + quarter * band
        for block in range(4):
            parts.append(box(left + block * width, y, width, band, color))
        parts.append(
            text(left - 8, y + band / 2 + 4, f"{32 * quarter}-{32 * quarter + 31}", 11, "end")
        )
    for block in range(4):
        parts.append(text(left + block * width + width / 2, top - 8, block, 11))
    x, y = left + BLOCK * width, top + ROW * band / 32
    return [
        *parts,
        text(left - 8, top - 8, "rows, blocks", 11, "end"),
        box(x, y - 4, width, 8, MARK, MARK, 1),
        text(left + 68, top + 4 * band + 24, f"row {ROW}, block {BLOCK}", 12, fill=MARK),
    ]


def in_memory(left, top):
    """The same atom in memory: 32 lines of 16 bytes, four bytes from each band."""
    width, height = 20, 22
    lines = (0, 1, None, 5, ROW % 32, 7, None, 30, 31)
    parts = caption(left + 160, "The same atom in memory", "32 lines of 16 bytes: four of each row")
    for byte in range(16):
        parts.append(text(left + byte * width + width / 2, top - 8, byte, 11))
    for place, line in enumerate(lines):
        y = top + place * (height + 8)
        if line is None:
            parts.append(text(left + 160, y + height / 2 + 2, "...", 14))
            continue
        parts.append(text(left - 8, y + 15, f"line {line}", 11, "end"))
        for quarter, color in enumerate(BANDS):
            x = left + quarter * 4 * width
            parts.append(box(x, y, 4 * width, height, color, INK, 0.4))
            # Short ticks part the bytes and leave the words readable.
            for byte in range(1, 4):
                parts.append(box(x + byte * width, y + height - 5, 0.8, 5, INK, "none", 0))
            parts.append(text(x + 3, y + 14, f"row {line + 32 * quarter}", 11, "start"))
        if line == ROW % 32:
            byte = offset(ROW, BLOCK, 3) % 16
            parts.append(box(left + byte * width, y, width, height, "none", MARK, 2.2))
    y = top + len(lines) * (height + 8)
    where = f"byte {ROW % 32} x 16 + {ROW // 32} x 4 + {BLOCK} = {offset(ROW, BLOCK, 3)}"
    return [*parts, text(left + 160, y + 12, where, 12, fill=MARK)]


def draw():
    """The picture as SVG text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif">',
        "<title>The 128x4 scale layout</title>",
        box(0, 0, WIDTH, HEIGHT, PAPER, "none", 0),
        *all_atoms(66, 102),
        *one_atom(376, 102),
        *in_memory(572, 102),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(draw())
