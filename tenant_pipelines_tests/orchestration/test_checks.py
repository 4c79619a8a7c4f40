"""The asset checks of a shard: who reports them, when, and what a person reads there."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetCheckEvaluation, AssetCheckKey, TableMetadataValue

from tenant_pipelines.engine.runner import ShardRun
from tenant_pipelines.engine.work import CellEvent
from tenant_pipelines.errors import JournalUnusable
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.checks import evaluate_checks, report_checks
from tenant_pipelines.orchestration.dagster_internals import newest_check, report_check
from tenant_pipelines_tests.engine.fleets import run_shard
from tenant_pipelines_tests.orchestration.conftest import Rig

_LAST = names.asset_key("story", "shard_2", "load")


def _now() -> datetime:
    return datetime.now(UTC)


def _shown(rig: Rig, name: str = "complete") -> AssetCheckEvaluation:
    found = newest_check(rig.instance, _LAST, name)
    assert found is not None
    return found


def _late(evaluation: AssetCheckEvaluation) -> list[tuple[Any, ...]]:
    table = evaluation.metadata["late"]
    assert isinstance(table, TableMetadataValue)
    columns = [column.name for column in table.schema.columns]
    assert columns == ["tenant", "step", "reason", "age"]
    return [tuple(record.data[name] for name in columns) for record in table.records]


@pytest.mark.parametrize("keys", [{}, {"first": "initech", "last": "hooli"}], ids=["none", "range"])
def test_a_failing_run_reports_who_is_late_before_it_fails(rig: Rig, keys: Any) -> None:
    """A check op downstream of it would not run then, and nobody would be told."""
    rig.fault.touch()
    assert not rig.run(**keys).success
    shown = _shown(rig)
    assert not shown.passed
    assert shown.description == "1 of 3 tenants late: umbrella: transform, load"
    assert _late(shown) == [
        ("umbrella", "transform", "failed", "never done"),
        ("umbrella", "load", "never_run", "never done"),
    ]
    rig.fault.unlink()
    assert rig.run().success
    assert _shown(rig).passed
    assert _shown(rig).description == "all 3 tenants done"


def test_the_age_of_a_late_tenant_counts_from_its_last_completion_in_any_cycle(rig: Rig) -> None:
    """Late since five minutes or since a month is not the same to whoever is paged."""
    rig.run()
    rig.fault.touch()
    rig.run(config={"new_cycle": "2"})
    later = _now() + timedelta(hours=5)
    complete, _ = evaluate_checks(rig.fleet, "shard_2", now=later)
    assert _late(complete)[0] == ("umbrella", "transform", "failed", "5 h")


def test_a_tenant_that_is_done_is_late_when_that_was_longer_ago_than_stale_after(rig: Rig) -> None:
    """A schedule that does not run any more leaves everything green and old."""
    rig.run()
    fleet = replace(rig.fleet, stale_after=timedelta(hours=24))
    fresh, _ = evaluate_checks(fleet, "shard_2", now=_now() + timedelta(hours=23))
    stale, _ = evaluate_checks(fleet, "shard_2", now=_now() + timedelta(hours=49))
    assert fresh.passed
    assert not stale.passed
    assert _late(stale)[0] == ("initech", "extract", "stale", "2 d")


def test_a_check_is_reported_from_outside_only_when_it_has_changed(rig: Rig) -> None:
    """The caretaker looks every few seconds; an event each time would bury the others."""
    assert report_checks(rig.instance, rig.fleet, "shard_2", now=_now()) == 2
    assert not _shown(rig).passed
    assert report_checks(rig.instance, rig.fleet, "shard_2", now=_now()) == 0
    run_shard(rig.fleet, "shard_2")
    assert report_checks(rig.instance, rig.fleet, "shard_2", now=_now()) == 2
    assert _shown(rig).passed
    assert report_checks(rig.instance, rig.fleet, "shard_2", now=_now()) == 0


def test_a_check_that_dagster_shows_no_more_is_reported_again(rig: Rig) -> None:
    """The UI shows none whose asset was materialized since, by whomever and for whatever."""
    rig.run()
    assert report_checks(rig.instance, rig.fleet, "shard_2", now=_now()) == 0
    rig.report("hooli", "load")
    assert newest_check(rig.instance, _LAST, "complete") is None
    assert report_checks(rig.instance, rig.fleet, "shard_2", now=_now()) == 2
    assert _shown(rig).passed
    assert report_checks(rig.instance, rig.fleet, "shard_2", now=_now()) == 0


@pytest.mark.parametrize("is_failing", [False, True])
def test_what_is_reported_while_a_run_is_at_work_does_not_hide_its_own_word(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, is_failing: bool
) -> None:
    """The caretaker may have looked just before the run was made; its word is of an older state."""
    rig.run()
    events = ShardRun.events

    def after_a_word_of_others(run: ShardRun) -> Iterator[CellEvent]:
        for evaluation in evaluate_checks(rig.fleet, "shard_2", now=_now()):
            report_check(rig.instance, evaluation)
        yield from events(run)

    monkeypatch.setattr(ShardRun, "events", after_a_word_of_others)
    if is_failing:
        rig.fault.touch()
    assert rig.run(config={"force": True}).success is not is_failing
    assert _shown(rig).passed is not is_failing
    assert _shown(rig, "rows_accounted").passed


def test_the_checks_alone_can_be_asked_for_and_run_no_step(rig: Rig) -> None:
    """The button on the asset's page."""
    run_shard(rig.fleet, "shard_2")
    job = build_definitions(rig.fleet).resolve_job_def("story__shard_2")
    result = job.get_subset(
        asset_selection=set(), asset_check_selection={AssetCheckKey(_LAST, "complete")}
    ).execute_in_process(instance=rig.instance)
    assert result.success
    assert rig.materializations(result.run_id) == {}
    assert _shown(rig).passed


def test_checks_of_a_damaged_journal_say_nothing(rig: Rig) -> None:
    """Who is late cannot be known; the shard's own run says what is wrong."""
    run_shard(rig.fleet, "shard_2")
    rig.fleet.journal_path("shard_2").write_bytes(b"no journal" * 1000)
    with pytest.raises(JournalUnusable):
        report_checks(rig.instance, rig.fleet, "shard_2", now=_now())


_ACCOUNTS = """
import pandas as pd
from tenant_pipelines import Pipeline, step

@step
def extract(ctx):
    return pd.DataFrame({"day": [1, 1, None], "amount": [2, 3, 4]})

@step
def transform(ctx, extract):
    per_day = extract.groupby("day", as_index=False, dropna=ctx.tenant == "umbrella").agg(
        orders=("amount", "size")
    )
    ctx.account(rows=int(per_day["orders"].sum()))
    return per_day

story = Pipeline([extract, transform])
"""


def test_rows_that_a_step_lost_are_found(rig: Rig, tmp_path: Path) -> None:
    """pandas drops groups without a key, and nothing else would ever say so."""
    assert _rows_of(rig) == (True, 0, 0)
    module = rig.fault.with_name("story_" + tmp_path.name.replace("-", "_") + "_rows.py")
    module.write_text(_ACCOUNTS)
    fleet_file = rig.fleet.path.with_name("rows.yaml")
    text = rig.fleet.path.read_text().replace("name: story", "name: rows")
    fleet_file.write_text(
        "\n".join(
            f"pipeline: {module.stem}:story" if line.startswith("pipeline") else line
            for line in text.splitlines()
        )
    )
    rows = rig.of(fleet_file)
    assert rows.run().success
    found = newest_check(
        rig.instance, names.asset_key("rows", "shard_2", "transform"), "rows_accounted"
    )
    assert found is not None
    assert not found.passed
    assert found.description == "1 of 3 tenants differ"
    assert found.metadata["extracted_rows"].value == 9
    assert found.metadata["accounted_rows"].value == 8
    table = found.metadata["differing"]
    assert isinstance(table, TableMetadataValue)
    assert [record.data for record in table.records] == [
        {"tenant": "umbrella", "extracted": "3", "accounted": "2"}
    ]


def _rows_of(rig: Rig) -> tuple[bool, object, object]:
    _, rows = evaluate_checks(rig.fleet, "shard_2", now=_now())
    return rows.passed, rows.metadata["extracted_rows"].value, rows.metadata["accounted_rows"].value
