"""The sub-commands and their options; each does its work in a module of its own.

May import typer; everything else is imported by the command that runs.
"""

import enum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Fused low-precision GPU kernels: try them, inspect the installation, fill the cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_app = typer.Typer(
    help="Show or clear the cache of compiled kernels.", invoke_without_command=True
)
app.add_typer(cache_app, name="cache")


class EngineChoice(enum.StrEnum):
    """Engines that the demo can be told to use."""

    auto = "auto"
    hopper = "hopper"
    reference = "reference"


def _version(asked: bool) -> None:
    if asked:
        from cudnn_core import __version__

        typer.echo(f"cudnn {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    plot: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="FILE.png", help="Also draw what each format costs."),
    ] = None,
    engine: Annotated[EngineChoice, typer.Option(help="Which engine to use.")] = EngineChoice.auto,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="Timed calls of each case; the median is shown.")
    ] = None,
) -> None:
    """Run every built operation on real input; show errors, times, and what each format costs."""
    from cudnn_core.cli import demo, pictures, places

    try:
        status = demo.run(engine.value, repeat, plot)
    except (pictures.NoPlot, places.NoPlace) as error:
        _fail(error)
    raise typer.Exit(status)


@app.command()
def doctor() -> None:
    """Explain what is installed, which engines can run here, and why not the others."""
    from cudnn_core.cli import doctor

    raise typer.Exit(doctor.run())


@app.command("compile")
def compile_(
    family: Annotated[
        list[str] | None, typer.Argument(help="Families to compile, such as dense; default: all.")
    ] = None,
    arch: Annotated[str, typer.Option(help="Architecture to compile for.")] = "sm_90a",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default: one for each processor.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every variant, not only those in common use.")
    ] = False,
) -> None:
    """Fill the kernel cache ahead of time. Needs Linux and the compiler, but no GPU."""
    from cudnn_core.cli import ahead, families

    try:
        status = ahead.run(family or [], arch, jobs, everything)
    except (ahead.CannotCompile, families.UnknownFamily) as error:
        _fail(error)
    raise typer.Exit(status)


@app.command()
def bench(
    family: Annotated[
        list[str] | None, typer.Argument(help="Families to measure, such as dense.")
    ] = None,
    op: Annotated[
        list[str] | None, typer.Option(help="Only operations whose name holds this; repeatable.")
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="Only cases whose shape or formats hold this; repeatable."),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            help="Only peers and bounds with one of these in their names, such as mm,quack. "
            "targets: only those that have one; none: ours alone."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A short selection of cases, few rounds.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compile and check everything; time nothing.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the cases and stop; needs no GPU.")
    ] = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Measure every tile instead, and fit the rules that pick one again."
        ),
    ] = False,
    show: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Show these rows instead of measuring."),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Where rows go; rows already there stay."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="FILE.png", help="Also draw the ratios to targets."),
    ] = None,
) -> None:
    """Measure operations against their peers on this GPU, each checked first, and write the rows."""
    from cudnn_core.bench import results
    from cudnn_core.cli import bench, families, pictures
    from cudnn_core.cli import tune as tuning

    selection = bench.Selection(tuple(op or ()), tuple(case or ()), quick, peers)
    output = bench.Output(json, plot)
    try:
        if tune:
            status = tuning.main(family or [], selection, output, show, listing, check)
        elif show is not None:
            status = bench.show(show, selection, output)
        elif listing:
            status = bench.list_cases(family or [], selection)
        else:
            status = bench.run(family or [], selection, output, check_only=check)
    except (
        bench.CannotBench,
        families.UnknownFamily,
        pictures.NoPlot,
        results.BadRows,
    ) as error:
        _fail(error)
    raise typer.Exit(status)


@cache_app.callback()
def _cache(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        show()


@cache_app.command()
def show() -> None:
    """List the compiled kernels on disk."""
    from cudnn_core.cli import stored

    try:
        stored.show()
    except stored.NoCache as error:
        _fail(error)


@cache_app.command()
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove the compiled kernels from disk."""
    from cudnn_core.cli import stored

    try:
        stored.clear(lambda question: yes or typer.confirm(question))
    except stored.NoCache as error:
        _fail(error)


def _fail(error: Exception) -> None:
    typer.echo(f"cudnn: {error}", err=True)
    raise typer.Exit(2) from None
