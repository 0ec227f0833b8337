"""Numbers, tables and progress: what they look like on pipes and in narrow terminals."""

import io

import pytest
from rich.console import Console

from cudnn_core.cli import console as look
from cudnn_core.cli import texts


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (texts.show_bytes, 0, "0 B"),
        (texts.show_bytes, 1023, "1023 B"),
        (texts.show_bytes, 1536, "1.5 KiB"),
        (texts.show_bytes, 5 * 2**30, "5.0 GiB"),
        (texts.show_bytes, 5 * 2**40, "5120.0 GiB"),
        (texts.show_seconds, 0, "0 us"),
        (texts.show_seconds, 1.23e-5, "12.3 us"),
        (texts.show_seconds, 9.994e-4, "999 us"),
        (texts.show_seconds, 9.996e-4, "1.00 ms"),
        (texts.show_seconds, 0.0456, "45.6 ms"),
        (texts.show_seconds, 78.9, "78.9 s"),
        (texts.show_age, -3, "0 s"),
        (texts.show_age, 59, "59 s"),
        (texts.show_age, 60, "1 min"),
        (texts.show_age, 7200, "2 h"),
        (texts.show_age, 3 * 86400, "3 d"),
        (texts.show_error, 0.0, "0"),
        (texts.show_error, 1.26e-7, "1.3e-7"),
        (texts.show_error, 2.5e-12, "2.5e-12"),
        (texts.show_error, 12.0, "1.2e+1"),
        (texts.show_error, float("nan"), "nan"),
        (texts.three_digits, 1234.4, "1234"),
        (texts.three_digits, 99.96, "100"),
        (texts.three_digits, 53, "53.0"),
        (texts.three_digits, 0.01, "0.0100"),
        (texts.three_digits, 3.2e-6, "3.2e-06"),
    ],
)
def test_numbers(function, value, text):
    assert function(value) == text


def on_pipe(width):
    return Console(file=io.StringIO(), width=width, highlight=False)


def draw(width):
    columns = (look.Column("name"), look.Column("spare", spare=True), look.Column("n", right=True))
    rows = [("a" * 10, "b" * 10, "1"), ("a", "b", "20")]
    console = on_pipe(width)
    console.print(look.make_table(console, columns, rows))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_table_gives_up_gaps_then_spare_columns():
    assert draw(80)[2] == "aaaaaaaaaa   bbbbbbbbbb    1"
    assert draw(24)[2] == "aaaaaaaaaa bbbbbbbbbb  1"
    assert draw(23)[2] == "aaaaaaaaaa    1"
    assert draw(13)[2] == "aaaaaaaaaa  1"


def test_a_table_without_rows_is_its_head():
    console = on_pipe(40)
    console.print(look.make_table(console, (look.Column("name"),), []))
    assert "name" in console.file.getvalue()


def test_pairs_do_not_wrap_on_a_pipe():
    console = on_pipe(30)
    look.print_pairs(console, [("key", "v" * 50), ("longer", "[dim]w x[/dim]"), ("none", "")])
    assert console.file.getvalue().splitlines()[:2] == ["  key     " + "v" * 50, "  longer  w x"]


def test_pairs_wrap_under_themselves_on_a_terminal():
    console = Console(
        file=io.StringIO(), width=34, force_terminal=True, color_system=None, highlight=False
    )
    look.print_pairs(console, [("key", "aaaa bbbb cccc dddd eeee ffff gggg")])
    assert console.file.getvalue().splitlines() == [
        "  key  aaaa bbbb cccc dddd eeee",
        "       ffff gggg",
    ]


def test_console_on_a_pipe_is_wide_unless_told(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert look.make_console().width == look.PIPE_WIDTH
    monkeypatch.setenv("COLUMNS", "77")
    assert look.make_console().width == 77


def test_progress_on_a_pipe_is_plain_and_seldom(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(look.time, "monotonic", lambda: now[0])
    with look.Steps("title", 3) as steps:
        steps.begin("at once")
        now[0] += 1.5
        steps.begin("after [a] while")
        steps.finish()
        now[0] += 0.5
        steps.begin("too soon")
        steps.finish()
        now[0] += 1.0
        steps.finish("named")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "[0/3] after [a] while\n[3/3] named\n"
