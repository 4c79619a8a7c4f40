"""``tenant-pipelines``: one command line for running, looking and mending."""

import importlib.metadata
import io
import sys
from typing import Annotated

import typer

from tenant_pipelines.cli.common import USAGE
from tenant_pipelines.cli.demo import demo_app
from tenant_pipelines.cli.journal import journal_app
from tenant_pipelines.cli.maintain import doctor, sync
from tenant_pipelines.cli.prune import prune
from tenant_pipelines.cli.reconcile import reconcile
from tenant_pipelines.cli.run import run
from tenant_pipelines.cli.show import plan, status, why
from tenant_pipelines.cli.verify import verify
from tenant_pipelines.errors import TenantPipelinesError


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(importlib.metadata.version("tenant-pipelines"))
        raise typer.Exit


app = typer.Typer(
    help="Run one data pipeline for many tenants; rerun anything, only what is missing runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the options that belong to no command."""


app.command()(run)
app.command()(plan)
app.command()(why)
app.command()(status)
app.command()(sync)
app.command()(reconcile)
app.command()(doctor)
app.command()(verify)
app.command()(prune)
app.add_typer(journal_app, name="journal")
app.add_typer(demo_app, name="demo")


def with_optional_values(arguments: list[str]) -> list[str]:
    """Give ``--new-cycle`` without a name an empty one, since its value is optional."""
    given: list[str] = []
    for position, argument in enumerate(arguments):
        following = arguments[position + 1 : position + 2]
        is_bare = argument == "--new-cycle" and (not following or following[0].startswith("-"))
        given.append("--new-cycle=" if is_bare else argument)
    return given


def main() -> None:
    """Run the command line; a user's mistake prints one message and exits with 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # JSON is UTF-8, and a name that the locale cannot print must not end a command
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        app(args=with_optional_values(sys.argv[1:]))
    except TenantPipelinesError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(USAGE)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
