"""``demo``: the story of the README with real processes and a real SIGKILL, offline."""

import json
import tempfile
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from tenant_pipelines.cli.common import ALL_DONE, NOT_DONE, JsonOption, print_json, wide_console
from tenant_pipelines.cli.demo_flights import flights
from tenant_pipelines.cli.demo_process import run_to_end

demo_app = typer.Typer(help="The stories, with real crashes, each in a fresh temporary folder.")
demo_app.command("flights")(flights)

_FLEET = "tenant_shards"
_CRASH = {"tenant": "umbrella", "step": "transform"}
# shard → (ran, skipped) of both runs, by the kind of crash; see the README
_EXPECTED = {
    "raise": [
        {"shard_1": (6, 0), "shard_2": (7, 0), "shard_3": (3, 0)},
        {"shard_1": (0, 6), "shard_2": (2, 7), "shard_3": (0, 3)},
    ],
    "kill": [
        {"shard_1": (6, 0), "shard_2": (4, 0), "shard_3": (3, 0)},
        {"shard_1": (0, 6), "shard_2": (5, 4), "shard_3": (0, 3)},
    ],
}
_TITLES = {
    "raise": "umbrella's transform raises",
    "kill": "shard_2's process gets SIGKILL in umbrella's transform",
}


@demo_app.command("tenant-shards")
def tenant_shards(as_json: JsonOption = False) -> None:
    """Six tenants in three shards: one shard dies, the rerun resumes only what it did not finish.

    Example: tenant-pipelines demo tenant-shards
    """
    stories = {kind: _story(kind, quiet=as_json) for kind in _EXPECTED}
    is_as_told = all(
        {entry["shard"]: (entry["ran"], entry["skipped"]) for entry in run["shards"]} == expected
        for kind, runs in stories.items()
        for run, expected in zip(runs, _EXPECTED[kind], strict=True)
    )
    if as_json:
        print_json({"stories": stories, "as_told": is_as_told})
    else:
        verdict = "Every count is as the README tells it." if is_as_told else "A count differs!"
        typer.echo(verdict)
    raise typer.Exit(ALL_DONE if is_as_told else NOT_DONE)


def _story(kind: str, *, quiet: bool) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tenant-pipelines-demo-") as folder:
        fault = Path(folder) / _FLEET / "fault.json"
        fault.parent.mkdir()
        fault.write_text(json.dumps({**_CRASH, "kind": kind}))
        first = run_to_end(folder, _FLEET)
        fault.unlink()
        second = run_to_end(folder, _FLEET)
    if not quiet:
        _print_story(kind, [first, second])
    return [first, second]


def _print_story(kind: str, runs: list[dict[str, Any]]) -> None:
    table = Table(
        "",
        *(shard["shard"] for shard in runs[0]["shards"]),
        title=_TITLES[kind],
        title_justify="left",
    )
    for name, run in zip(("run 1", "run 2, the whole fleet again"), runs, strict=True):
        table.add_row(name, *(_told(shard) for shard in run["shards"]))
    wide_console().print(table)


def _told(shard: dict[str, Any]) -> str:
    skipped = f", {shard['skipped']} skipped" if shard["skipped"] else ""
    crashed = "".join(f", crashed at {cell['tenant']}:{cell['step']}" for cell in shard["failed"])
    return f"{shard['status']}, {shard['ran']} ran{skipped}{crashed}"
