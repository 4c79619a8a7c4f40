"""The progress of a run: bars for a person at a terminal, few and true lines for a log."""

import io
import os
import pty
import re
import threading
from pathlib import Path

import pytest
from rich.console import Console

from tenant_pipelines.cli.progress import RunProgress
from tenant_pipelines.engine.cycles import open_cycle
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import Retries, step
from tenant_pipelines_tests.engine.fleets import make_fleet, run_shard

_SECONDS = 20.0
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@step
def extract(ctx: StepContext) -> str:
    if ctx.tenant == "broken":
        raise ValueError("no [red]such[/red] file")
    return ctx.tenant


@step
def load(ctx: StepContext, extract: str) -> None:
    return None


_STEPS = [extract, load]


class _Said(io.StringIO):
    """What was printed, and an event that is set once it holds a text."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited
        self.is_said = threading.Event()

    def write(self, text: str, /) -> int:
        written = super().write(text)
        if self._awaited in self.getvalue():
            self.is_said.set()
        return written


def _log(file: io.StringIO) -> Console:
    """Return a console that is no terminal, whatever the tests run in."""
    return Console(file=file, force_terminal=False, soft_wrap=True)


def _terminal(file: io.TextIOBase) -> Console:
    environ = {"TERM": "xterm-256color"}
    return Console(file=file, force_terminal=True, width=100, height=50, _environ=environ)  # type: ignore[arg-type]  # rich wants IO[str], which StringIO is


def _fleet(folder: Path, **shards: list[str]) -> Fleet:
    """Return a fleet whose journals exist, as they do from its second run on."""
    fleet = make_fleet(folder, _STEPS, shards)
    open_cycle(fleet, asked=None, root="earlier", run_id="earlier")
    return fleet


def _frame(text: str, shards: int) -> list[str]:
    """Return the lines of the bars as they stood in the end, without the bars themselves."""
    lines = [line for line in re.split(r"[\r\n]+", _ANSI.sub("", text)) if line.strip()]
    return [" ".join(re.sub("[━╸╺]+", "", line).split()) for line in lines[-shards:]]


def test_a_log_gets_no_line_when_nothing_was_done(tmp_path: Path) -> None:
    """A cron job that finds everything done sends no mail."""
    fleet = _fleet(tmp_path, a=["acme"])
    file = io.StringIO()
    with RunProgress(fleet, {"a": 2}, run_id="r", console=_log(file)):
        pass
    assert file.getvalue() == ""


def test_a_log_gets_the_count_of_what_was_done(tmp_path: Path) -> None:
    """The last line is true, also when the run ends between two looks."""
    fleet = _fleet(tmp_path, a=["acme", "globex"], b=["hooli"])
    file = io.StringIO()
    with RunProgress(fleet, {"a": 4, "b": 2}, run_id="r", console=_log(file)):
        run_shard(fleet, "a", root="r")
        run_shard(fleet, "b", root="r")
    lines = file.getvalue().splitlines()
    assert lines[-1] == "6 of 6 cells done"
    assert len(set(lines)) == len(lines)
    assert "\x1b" not in file.getvalue()


def test_a_log_gets_each_failure_once_and_as_it_was_written(tmp_path: Path) -> None:
    """Looks come every quarter of a second; the error's brackets are not markup."""
    fleet = _fleet(tmp_path, a=["acme", "broken"])
    told = "a: broken:extract failed: ValueError: no [red]such[/red] file"
    file = _Said(told)
    with RunProgress(fleet, {"a": 4}, run_id="r", console=_log(file)):
        run_shard(fleet, "a", root="r")
        assert file.is_said.wait(_SECONDS)
    lines = file.getvalue().splitlines()
    (failure,) = [line for line in lines if "failed" in line]
    assert failure.startswith(told)
    assert lines[-1] == "2 of 4 cells done"


def test_a_failure_is_told_while_the_run_goes_on(tmp_path: Path) -> None:
    """Whoever watches can stop a run that is going wrong; the journal is new in a first run."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["broken"]})
    file = _Said("broken:extract failed")
    with RunProgress(fleet, {"a": 2}, run_id="r", console=_log(file)):
        run_shard(fleet, "a", root="r")
        assert file.is_said.wait(_SECONDS)


def test_a_failure_that_a_retry_mended_is_not_left_in_the_count(tmp_path: Path) -> None:
    """The bar would say 1 failed of a run in which nothing did."""
    tries: list[str] = []

    @step(retries=Retries(attempts=2, wait_seconds=0))
    def flaky(ctx: StepContext) -> int:
        tries.append(ctx.tenant)
        if len(tries) == 1:
            raise ValueError("not yet")
        return 1

    fleet = make_fleet(tmp_path, [flaky], {"a": ["acme"]})
    open_cycle(fleet, asked=None, root="earlier", run_id="earlier")
    file = io.StringIO()
    with RunProgress(fleet, {"a": 1}, run_id="r", console=_terminal(file)):
        run_shard(fleet, "a", root="r")
    assert tries == ["acme", "acme"]
    assert _frame(file.getvalue(), 1) == ["a 1/1"]


def test_what_older_runs_wrote_is_not_progress(tmp_path: Path) -> None:
    """The count is of this run; an old failure that this run did not touch is no news."""
    fleet = _fleet(tmp_path, a=["acme", "broken"])
    run_shard(fleet, "a", root="older")
    file = io.StringIO()
    with RunProgress(fleet, {"a": 2}, run_id="r", console=_log(file)):
        pass
    assert file.getvalue() == ""
    with RunProgress(fleet, {"a": 2}, run_id="r", console=_log(file)):
        run_shard(fleet, "a", root="r", new_cycle="second", tenants=["acme"])
    assert file.getvalue().splitlines()[-1] == "2 of 2 cells done"
    assert "failed" not in file.getvalue()


def test_what_another_run_writes_meanwhile_is_not_progress(tmp_path: Path) -> None:
    """Two runs can work in one shard; each counts its own cells."""
    fleet = _fleet(tmp_path, a=["acme", "globex", "broken"])
    file = io.StringIO()
    with RunProgress(fleet, {"a": 2}, run_id="r", console=_log(file)):
        run_shard(fleet, "a", root="other", tenants=["acme", "broken"])
        run_shard(fleet, "a", root="r", tenants=["globex"])
    assert file.getvalue().splitlines()[-1] == "2 of 2 cells done"
    assert "failed" not in file.getvalue()


def test_a_damaged_shard_does_not_hide_the_others_progress(tmp_path: Path) -> None:
    """Its own run says what is wrong with it."""
    fleet = _fleet(tmp_path, a=["acme"], b=["globex"])
    fleet.journal_path("b").write_bytes(b"not a journal\n" * 100)
    file = io.StringIO()
    with RunProgress(fleet, {"b": 2, "a": 2}, run_id="r", console=_log(file)):
        run_shard(fleet, "a", root="r")
    assert file.getvalue().splitlines()[-1] == "2 of 4 cells done"


def test_a_terminal_shows_a_bar_per_shard_with_its_failures(tmp_path: Path) -> None:
    """One look tells which shard is behind and which is in trouble."""
    fleet = _fleet(tmp_path, a=["acme", "broken"], b=["hooli"])
    file = io.StringIO()
    with RunProgress(fleet, {"a": 4, "b": 2}, run_id="r", console=_terminal(file)):
        run_shard(fleet, "a", root="r")
        run_shard(fleet, "b", root="r")
    assert _frame(file.getvalue(), 2) == ["a 2/4 1 failed", "b 2/2"]
    said = _ANSI.sub("", file.getvalue())
    assert said.count("a: broken:extract failed: ValueError: no [red]such[/red] file") == 1
    assert "cells done" not in said


def test_a_terminal_shows_the_bars_of_a_run_that_did_nothing(tmp_path: Path) -> None:
    """They stand at zero and end, rather than spin or divide by it."""
    fleet = _fleet(tmp_path, a=["acme"], b=["hooli"])
    file = io.StringIO()
    with RunProgress(fleet, {"a": 2, "b": 0}, run_id="r", console=_terminal(file)):
        pass
    assert _frame(file.getvalue(), 2) == ["a 0/2", "b 0/0"]


def test_many_shards_do_not_fill_the_terminal(tmp_path: Path) -> None:
    """Twenty bars fit a screen; a failure in a shard without one is told all the same."""
    shards = {f"shard_{number:02}": [f"tenant_{number}"] for number in range(24)}
    fleet = make_fleet(tmp_path, _STEPS, {**shards, "shard_24": ["broken"]})
    todo = dict.fromkeys(fleet.shards, 2)
    open_cycle(fleet, asked=None, root="earlier", run_id="earlier")
    file = io.StringIO()
    with RunProgress(fleet, todo, run_id="r", console=_terminal(file)):
        run_shard(fleet, "shard_24", root="r")
    assert _frame(file.getvalue(), 20) == [f"shard_{number:02} 0/2" for number in range(20)]
    said = _ANSI.sub("", file.getvalue())
    assert "shard_24: broken:extract failed" in said
    assert "shard_24 " not in said


def test_a_pseudo_terminal_is_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """run decides by the file that it prints to, and nobody forces it."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    fleet = _fleet(tmp_path, a=["acme", "broken"], b=["hooli"])
    master, slave = pty.openpty()
    heard = bytearray()

    def listen() -> None:
        try:
            while more := os.read(master, 65536):
                heard.extend(more)
        except OSError:
            return  # EIO: the other end was closed

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with os.fdopen(slave, "w") as file:
        console = Console(file=file, soft_wrap=True)
        with RunProgress(fleet, {"a": 4, "b": 2}, run_id="r", console=console):
            run_shard(fleet, "a", root="r")
            run_shard(fleet, "b", root="r")
    listener.join(_SECONDS)
    os.close(master)
    assert not listener.is_alive()
    assert _frame(heard.decode(), 2) == ["a 2/4 1 failed", "b 2/2"]
    assert heard.endswith(b"\x1b[?25h")  # the cursor is shown again


def test_a_run_that_ends_before_the_first_look_is_told_at_the_end(tmp_path: Path) -> None:
    """A short run on a fresh machine must not end in silence."""
    fleet = make_fleet(tmp_path, _STEPS, {"a": ["acme", "broken"]})
    said = io.StringIO()
    with RunProgress(fleet, {"a": 4}, run_id="r", console=_log(said)):
        run_shard(fleet, root="r")
    assert "2 of 4 cells done" in said.getvalue()
    assert said.getvalue().count("broken:extract failed") == 1
