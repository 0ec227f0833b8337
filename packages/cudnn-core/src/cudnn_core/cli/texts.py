"""Numbers as the command line writes them. Imports nothing."""


def show_bytes(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def show_seconds(seconds: float) -> str:
    """Three digits with the unit that suits: "12.3 us", "4.56 ms", "78.9 s"."""
    for scale, unit in ((1e-6, "us"), (1e-3, "ms")):
        if seconds < 999.5 * scale:
            return f"{three_digits(seconds / scale)} {unit}"
    return f"{three_digits(seconds)} s"


def show_age(seconds: float) -> str:
    """How long ago, in the largest unit that fits: "3 h"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def show_error(error: float) -> str:
    """A relative error: "1.2e-7", and "0" only when it is exactly that."""
    return "0" if error == 0 else f"{error:.1e}".replace("e-0", "e-").replace("e+0", "e+")


def three_digits(value: float) -> str:
    """1234 -> "1234", 12.345 -> "12.3", 0.01 -> "0.0100"."""
    if value == 0:
        return "0"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:#.3g}" if value >= 1e-4 else f"{value:.1e}"
