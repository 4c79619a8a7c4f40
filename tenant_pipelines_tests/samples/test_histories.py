"""Whatever happens over ten cycles, the warehouse is what a computation from scratch gives."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tenant_pipelines_tests.samples.histories import TENANTS

_CYCLES = 10
# a run of the three tenants crosses about 60
_POINTS = st.integers(1, 70)
_FEEDS = st.fixed_dictionaries(
    {
        "days": st.integers(0, 1),
        "late": st.integers(0, 2),
        "corrections": st.integers(0, 3),
        "seed": st.integers(0, 9),
    }
)
_ASKED: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "force": st.just(True),
            "tenants": st.lists(st.sampled_from(TENANTS), min_size=1, unique=True),
            "steps": st.lists(
                st.sampled_from(["extract", "transform", "load"]), min_size=1, unique=True
            ),
        }
    ),
)
_RUNS = st.fixed_dictionaries(
    {
        "dies_at": st.one_of(_POINTS, st.none()),
        "faulty": st.lists(st.sampled_from(TENANTS), max_size=2, unique=True),
        "version": st.sampled_from("12"),
        "asked": _ASKED,
        "before": st.sampled_from([None, None, None, "lose artifacts", "prune", "feed"]),
        # a re-execution shares the root of the run before it
        "again": st.booleans(),
    }
)
_HISTORIES = st.lists(
    st.tuples(_FEEDS, st.lists(_RUNS, min_size=1, max_size=3)), min_size=1, max_size=_CYCLES
)


@dataclass
class Server:
    """The process that carries out commands."""

    process: "subprocess.Popen[str]"

    def ask(self, **command: Any) -> list[str] | None:
        """Carry out one command and return what was wrong, None for a run that was killed."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer: list[str] | None = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("histories") / "history"
    command = [sys.executable, "-m", "tenant_pipelines_tests.samples.histories", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Server(process)
        assert process.stdin
        process.stdin.close()
        process.wait(timeout=60)


def _carry_out(server: Server, history: list[Any]) -> int:
    """Carry out a history and check it; return how many runs were killed."""
    assert server.ask(do="begin") == []
    root, lost, kills = 0, False, 0
    for cycle, (amounts, runs) in enumerate(history, start=1):
        assert server.ask(do="feed", amounts=amounts) == []
        for number, run in enumerate(runs):
            if run["before"] == "feed":
                assert server.ask(do="feed", amounts=amounts) == []
            elif run["before"]:
                assert server.ask(do=run["before"]) == []
            lost = lost or run["before"] == "lose artifacts"
            root += not run["again"]
            opens = str(cycle) if number == 0 and cycle > 1 else None
            answer = server.ask(do="run", cycle=opens, root=f"root {root}", **run)
            assert answer in (None, []), run
            kills += answer is None
            is_whole = answer == [] and not run["faulty"] and not run["asked"]
            if is_whole and number == len(runs) - 1:
                assert server.ask(do="check", may_lack_artifacts=lost) == []
    last: dict[str, Any] = {"faulty": [], "version": "1", "dies_at": None}
    # what the cycle still lacks, then a cycle in which everybody works
    for opens in (None, "last"):
        assert server.ask(do="run", cycle=opens, root=f"end {opens}", **last) == []
        assert server.ask(do="check", may_lack_artifacts=lost) == []
    return kills


@pytest.mark.slow
@given(history=_HISTORIES)
@settings(
    max_examples=15,
    deadline=None,
    # each step of it would take seconds
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_history_ends_with_what_a_computation_from_scratch_gives(
    server: Server, history: list[Any]
) -> None:
    """New and late flights, corrections; kills anywhere, faults, forces, new code, lost artifacts.

    Every run that was not killed did exactly what its plan had said.
    """
    _carry_out(server, history)


@pytest.mark.slow
def test_ten_cycles_each_killed_at_other_points(server: Server) -> None:
    """One long history, killed twice in each cycle at other boundaries, then run to its end."""
    quiet: dict[str, Any] = {
        "faulty": [], "version": "1", "asked": {}, "before": None, "again": False,
    }  # fmt: skip
    history = [
        (
            {"days": 1, "late": 2, "corrections": 3, "seed": cycle},
            [{**quiet, "dies_at": point} for point in (1 + 3 * cycle, 2 + 2 * cycle, None)],
        )
        for cycle in range(_CYCLES)
    ]
    assert _carry_out(server, history) == 2 * _CYCLES
