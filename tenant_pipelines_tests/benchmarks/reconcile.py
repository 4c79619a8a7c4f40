"""What looking costs when all is well: ``reconcile`` of cells that Dagster shows right already."""

import sys
import tempfile
import time
from pathlib import Path

from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.fold import fold_tenant
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.orchestration.reconcile import reconcile_shard
from tenant_pipelines.orchestration.register import register_shard
from tenant_pipelines_tests.benchmarks.report import Contestant, Measurement, Target, compare
from tenant_pipelines_tests.benchmarks.sync import fresh_instance
from tenant_pipelines_tests.benchmarks.trivial import STEPS, run_fleet, trivial_fleet

_CELLS = 10_000
_SHARD = "shard_0"


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure 10,000 right cells of one shard beside reading and folding its journal."""
    tenants = max(2, round(_CELLS * scale) // len(STEPS))
    cells = tenants * len(STEPS)
    with tempfile.TemporaryDirectory(dir=folder) as name, fresh_instance(folder) as instance:
        fleet = trivial_fleet(Path(name), tenants=tenants)
        run_fleet(fleet).check(ran=cells)
        register_shard(instance, fleet, _SHARD)
        sys.stderr.write(f"reconcile: {cells:,} events to begin with … ")
        sys.stderr.flush()

        def seconds(*, wanted: int) -> float:
            began = time.perf_counter()
            done = reconcile_shard(instance, fleet, _SHARD)
            took = time.perf_counter() - began
            if (done.green, done.red, done.left) != (wanted, 0, 0):
                raise RuntimeError(f"reconcile did {done}, wanted {wanted} cells green")
            return took

        sys.stderr.write(f"{seconds(wanted=cells):.0f} s\n")
        return {
            "reconcile": compare(
                f"reconcile of {cells:,} right cells in one shard",
                unit="s",
                floor=Contestant(title="read and fold the journal", once=lambda: _fold(fleet)),
                subjects={
                    "right": Contestant(
                        title="reconcile, nothing to mend",
                        once=lambda: seconds(wanted=0),
                        target=Target(at_most=5.0),
                    )
                },
                rounds=rounds,
            )
        }


def _fold(fleet: Fleet) -> float:
    with Journal(fleet.journal_path(_SHARD), fleet=fleet.name, shard=_SHARD) as journal:
        began = time.perf_counter()
        for _, entries in journal.outcomes_by_tenant("1"):
            fold_tenant(entries)
        return time.perf_counter() - began
