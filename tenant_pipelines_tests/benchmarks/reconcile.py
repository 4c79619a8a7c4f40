"""What looking costs when all is well: ``reconcile``, and a tick of the caretaker."""

import sys
import tempfile
import time
from pathlib import Path

from dagster import DagsterInstance

from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.fold import fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.orchestration.caretaker import take_care
from tenant_pipelines.orchestration.current_fleet import Current
from tenant_pipelines.orchestration.looked_at import LookedAt
from tenant_pipelines.orchestration.reconcile import reconcile_shard
from tenant_pipelines.orchestration.register import register_shards
from tenant_pipelines_tests.benchmarks.report import Contestant, Measurement, Target, compare
from tenant_pipelines_tests.benchmarks.sync import fresh_instance
from tenant_pipelines_tests.benchmarks.trivial import extract, run_fleet
from tenant_pipelines_tests.engine.fleets import make_fleet

_TENANTS = 10_000
_SHARDS = 10


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure 10,000 right cells in ten shards beside reading and folding their journals."""
    per_shard = max(2, round(_TENANTS * scale) // _SHARDS)
    cells = per_shard * _SHARDS
    with tempfile.TemporaryDirectory(dir=folder) as name, fresh_instance(folder) as instance:
        # one step: a cell of each tenant, and an event of each to begin with
        fleet = make_fleet(
            Path(name),
            (extract,),
            {
                f"shard_{shard}": [f"tenant-{shard}-{number}" for number in range(per_shard)]
                for shard in range(_SHARDS)
            },
        )
        run_fleet(fleet).check(ran=cells)
        for _ in register_shards(instance, fleet, fleet.shards):
            pass
        sys.stderr.write(f"reconcile: {cells:,} events to begin with … ")
        sys.stderr.flush()
        sys.stderr.write(f"{_reconcile_seconds(instance, fleet, wanted=cells):.0f} s\n")
        seen = LookedAt()
        _tick_seconds(instance, fleet, seen)
        return {
            "reconcile": compare(
                f"{cells:,} right cells of as many tenants in {_SHARDS} shards",
                unit="s",
                floor=Contestant(title="read and fold the journals", once=lambda: _fold(fleet)),
                subjects={
                    "right": Contestant(
                        title="reconcile, nothing to mend",
                        once=lambda: _reconcile_seconds(instance, fleet, wanted=0),
                        target=Target(at_most=5.0),
                    ),
                    "tick": Contestant(
                        title="tick of the caretaker, nothing new",
                        once=lambda: _tick_seconds(instance, fleet, seen),
                        target=Target(at_most=1.0),
                    ),
                    "lost": Contestant(
                        title="the same, its cursor lost",
                        once=lambda: _tick_seconds(instance, fleet, LookedAt()),
                    ),
                },
                rounds=rounds,
            )
        }


def _reconcile_seconds(instance: DagsterInstance, fleet: Fleet, *, wanted: int) -> float:
    began = time.perf_counter()
    done = [reconcile_shard(instance, fleet, shard) for shard in fleet.shards]
    seconds = time.perf_counter() - began
    if sum(one.green for one in done) != wanted or any(one.red or one.left for one in done):
        raise RuntimeError(f"reconcile did {done}, wanted {wanted} cells green")
    return seconds


def _tick_seconds(instance: DagsterInstance, fleet: Fleet, seen: LookedAt) -> float:
    began = time.perf_counter()
    current = Current(fleet=fleet, version="1")
    care = take_care(instance, current, seen, until=time.monotonic() + 3600)
    seconds = time.perf_counter() - began
    if care.said or care.requests:
        raise RuntimeError(f"the tick found something to do: {care.summary}")
    return seconds


def _fold(fleet: Fleet) -> float:
    began = time.perf_counter()
    for shard in fleet.shards:
        with Journal(fleet.journal_path(shard), fleet=fleet.name, shard=shard) as journal:
            for _, entries in journal.outcomes_by_tenant("1"):
                fold_tenant(entries)
    return time.perf_counter() - began
