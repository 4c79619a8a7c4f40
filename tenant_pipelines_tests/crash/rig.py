"""What crash tests share: a fleet in a folder, its commands as real processes, and what they left.

Every process starts in a session of its own. Whatever a test does, leaving a Rig kills what is
still alive of those sessions and nothing else.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from dagster import DagsterInstance, ReexecutionOptions, execute_job
from dagster._utils.hosted_user_process import recon_job_from_origin

from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.slots import Slots
from tenant_pipelines.fleet.file import find_fleet, load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.journal.entries import Entry, EntryKind
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.instance import INSTANCE_SETTINGS
from tenant_pipelines_tests.crash.side_file import (
    DIES_AT,
    Attempt,
    attempts,
    is_alive,
    note_deaths,
)

# far above anything that is normal on a small machine, so that only a hang gets here
DEADLINE_SECONDS = 120.0

CLI = [sys.executable, "-m", "tenant_pipelines"]

MODULE_HEAD = """
import time
from pathlib import Path

from tenant_pipelines import Pipeline, StepContext, step
from tenant_pipelines_tests.crash.side_file import die_at, dies_at, noted, wait_for

HERE = Path(__file__).parent
"""

# two steps that take a moment, so that cells of a shard really run beside each other
SHORT_STEPS = """
@step
def extract(ctx: StepContext) -> dict:
    with noted(HERE, ctx):
        time.sleep(0.1)
        return {"tenant": ctx.tenant}

@step
def load(ctx: StepContext, extract: dict) -> None:
    with noted(HERE, ctx):
        time.sleep(0.1)

pipeline = Pipeline([extract, load])
"""

# an extract that waits for the file go.SHARD, then a load
GATED_STEPS = """
@step
def extract(ctx: StepContext) -> dict:
    with noted(HERE, ctx):
        wait_for(HERE / f"go.{ctx.shard}")
        time.sleep(0.1)
        return {"tenant": ctx.tenant}

@step
def load(ctx: StepContext, extract: dict) -> None:
    with noted(HERE, ctx):
        time.sleep(0.1)

pipeline = Pipeline([extract, load])
"""

_ENGINE_RUN = """
import json, sys
from pathlib import Path
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines_tests.engine.fleets import run_shard

run_shard(load_fleet(Path(sys.argv[1])), sys.argv[2], **json.loads(sys.argv[3]))
"""
_REEXECUTION = """
import sys
from tenant_pipelines_tests.crash.rig import reexecute

sys.exit(not reexecute(sys.argv[1], is_from_failure=sys.argv[2] == "from failure"))
"""


def wait_until(is_so: Callable[[], bool], what: str, *, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until something is so; fail with its name when the deadline passes."""
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.02)


@dataclass(slots=True)
class Started:
    """One command that runs in a session of its own, its output in files."""

    process: "subprocess.Popen[bytes]"
    out: Path
    err: Path
    side: Path

    @property
    def pid(self) -> int:
        """The first process, which leads the session."""
        return self.process.pid

    def members(self) -> list[int]:
        """Return the living processes of the session, orphans included."""
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if _session_of(pid) == self.pid and is_alive(pid)]

    def kill(self) -> None:
        """Kill the whole tree at one instant, and wait until it is gone."""
        if self.members():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        wait_until(lambda: not self.members(), "the death of a killed session")
        self.process.wait()
        note_deaths(self.side)

    def die(self) -> None:
        """Wait until the command has died, whole, at the moment that it was told."""
        wait_until(lambda: not self.members(), f"the death of {self.process.args!r}")
        assert self.process.wait() == -signal.SIGKILL, self.err.read_text()
        note_deaths(self.side)

    def kill_first_process_only(self) -> None:
        """Kill the process that was started and leave its children as orphans."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def has_ended(self) -> bool:
        """Tell whether the first process has ended."""
        return self.process.poll() is not None

    def finish(self, *, seconds: float = DEADLINE_SECONDS) -> "Ended":
        """Wait for the first process to end by itself and return what it left."""
        wait_until(self.has_ended, f"the end of {self.process.args!r}", seconds=seconds)
        note_deaths(self.side)
        return Ended(self.process.returncode, self.out.read_text(), self.err.read_text())


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that ended by itself."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What it printed, as JSON."""
        assert self.out, self.err
        return json.loads(self.out)


@dataclass(slots=True)
class Rig:
    """A fleet of one test, with its state, its DAGSTER_HOME and its processes.

    Attributes:
        folder: the test's own; the fleet file, the side file and every output are in it.
        name: name of the fleet.
        fleet_file: what ``--fleet`` and ``$TENANT_PIPELINES_FLEET`` get.
        dies_at: see ``dying_at``.
    """

    folder: Path
    name: str
    fleet_file: str
    started: list[Started] = field(default_factory=list)
    dies_at: str = ""

    @property
    def home(self) -> Path:
        """The DAGSTER_HOME."""
        return self.folder / "home"

    @property
    def environ(self) -> dict[str, str]:
        """The environment of every command."""
        return {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "TENANT_PIPELINES_FLEET": self.fleet_file,
            "TENANT_PIPELINES_STATE": str(self.folder / "state"),
            # the fleet's module imports the side file from here
            "PYTHONPATH": str(Path(__file__).parents[2]),
            DIES_AT: self.dies_at,
        }

    @property
    def fleet(self) -> Fleet:
        """The fleet as the commands see it."""
        return load_fleet(find_fleet(self.fleet_file), environ=self.environ)

    def start(self, *arguments: str, prefix: Sequence[str] = ()) -> Started:
        """Start a command of ours, through another one where ``prefix`` names it."""
        return self._start([*prefix, *CLI, *arguments])

    def start_job(
        self,
        *,
        shard: str | None = None,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Started:
        """Start ``dagster job execute`` on a shard's job, or on the fleet job."""
        job = names.fleet_job(self.name) if shard is None else names.shard_job(self.name, shard)
        command = [sys.executable, "-m", "dagster", "job", "execute"]
        command += ["-m", "tenant_pipelines.definitions", "-j", job]
        if config is not None:
            file = self.folder / "config.yaml"
            file.write_text(yaml.safe_dump(config))
            command += ["--config", str(file)]
        if tags is not None:
            command += ["--tags", json.dumps(tags)]
        return self._start(command)

    def start_dev(self, port: int) -> Started:
        """Start ``dagster dev``, webserver and daemon, on a port of this host alone."""
        command = [sys.executable, "-m", "dagster", "dev", "-m", "tenant_pipelines.definitions"]
        return self._start([*command, "-h", "127.0.0.1", "-p", str(port)])

    def start_reexecution(self, run_id: str, strategy: str) -> Started:
        """Start what the UI's button does, ``from failure`` or of ``all steps``."""
        return self._start([sys.executable, "-c", _REEXECUTION, run_id, strategy])

    def start_engine(self, shard: str, **asked: Any) -> Started:
        """Start a run of one shard by the engine alone, which is faster than by Dagster."""
        words = [self.fleet_file, shard, json.dumps(asked)]
        return self._start([sys.executable, "-c", _ENGINE_RUN, *words])

    @contextlib.contextmanager
    def dying_at(self, moment: str) -> Iterator[None]:
        """Let commands started meanwhile die where the fleet's module has ``die_at(moment)``."""
        self.dies_at = moment
        try:
            yield
        finally:
            self.dies_at = ""

    def call(self, *arguments: str, prefix: Sequence[str] = ()) -> Ended:
        """Run a command of ours to its end."""
        return self.start(*arguments, prefix=prefix).finish()

    def start_as(self, how: str) -> Started:
        """Start a run of the fleet: by our ``run``, or by ``job`` (``dagster job execute``)."""
        return self.start_job() if how == "job" else self.start("run", "--json")

    def open_gate(self, *shards: str) -> None:
        """Let the gated steps of some shards go on."""
        for shard in shards:
            (self.folder / f"go.{shard}").touch()

    def live_attempts(self, shard: str) -> list[Attempt]:
        """Return the attempts of a shard that have begun and not ended."""
        return [
            one for one in attempts(self.folder) if one.shard == shard and one.ended_at_ns is None
        ]

    def _start(self, command: Sequence[str]) -> Started:
        number = len(self.started)
        out, err = self.folder / f"{number}.out", self.folder / f"{number}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self.started.append(Started(process, out, err, self.folder))
        return self.started[-1]

    def entries(self, shard: str) -> list[Entry]:
        """Return every entry of a shard's journal, none where there is no journal."""
        fleet = self.fleet
        path = fleet.journal_path(shard)
        journal = Journal.existing(path, fleet=fleet.name, shard=shard)
        if journal is None:
            return []
        with journal:
            return list(journal.all_entries())

    def completed(self) -> list[tuple[str, str, str, int]]:
        """Return (tenant, step, cycle, generation) of every ``completed`` entry, sorted."""
        return sorted(
            (entry.tenant, entry.step, entry.cycle, entry.generation)
            for shard in self.fleet.shards
            for entry in self.entries(shard)
            if entry.kind is EntryKind.COMPLETED
        )

    def opened(self) -> dict[str, list[str]]:
        """Return the cycles that each shard's journal has opened, in order."""
        return {
            shard: [
                entry.cycle for entry in self.entries(shard) if entry.kind is EntryKind.CYCLE_OPENED
            ]
            for shard in self.fleet.shards
        }

    def artifact_files(self) -> list[str]:
        """Return every file below the artifacts folder, sorted."""
        root = Path(self.fleet.artifacts)
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def published_files(self) -> list[str]:
        """Return the artifacts that the ``completed`` entries name, sorted."""
        paths = [
            entry.payload["output"]["path"]
            for shard in self.fleet.shards
            for entry in self.entries(shard)
            if entry.kind is EntryKind.COMPLETED
        ]
        return sorted(path for path in paths if path is not None)

    def check_nothing_held(self) -> None:
        """Check that nobody holds a lease or a slot of any shard."""
        fleet = self.fleet
        held: list[str] = []
        for shard in fleet.shards.values():
            locks = fleet.shard_state(shard.name) / "locks"
            leases = TenantLeases(locks, query_only=True)
            held += [f"lease of {name}" for name in shard.tenants if leases.is_leased(name)]
            leases.close()
            slots = Slots(locks, shard.limits.max_concurrent, query_only=True)
            held += [f"slot {slot} of {shard.name}" for slot in slots.held()]
            slots.close()
        assert held == []

    @contextlib.contextmanager
    def instance(self) -> Iterator[DagsterInstance]:
        """Open the Dagster instance that the commands use."""
        instance = DagsterInstance.from_config(str(self.home))
        try:
            yield instance
        finally:
            instance.dispose()

    def run_statuses(self) -> list[str]:
        """Return the statuses that Dagster shows of the runs, sorted."""
        with self.instance() as instance:
            return sorted(run.status.value for run in instance.get_runs())

    def close(self) -> None:
        """Kill whatever is still alive."""
        for started in self.started:
            started.kill()


@contextlib.contextmanager
def rig_of(
    folder: Path,
    *,
    module: str = "",
    shards: Mapping[str, Sequence[str]] | None = None,
    name: str = "crash",
    sample: str | None = None,
    **keys: Any,
) -> Iterator[Rig]:
    """Write a fleet and its pipeline's module into a folder; kill all its processes at the end.

    Args:
        folder: of the test.
        module: source of the module below MODULE_HEAD, which defines ``pipeline``.
        shards: the tenants of each shard.
        name: name of the fleet.
        sample: a packaged fleet to use instead.
        keys: further keys of the fleet file.
    """
    (folder / "home").mkdir()
    # as a deployment has it; without one, dagster job execute would send telemetry
    (folder / "home" / "dagster.yaml").write_text(yaml.safe_dump(INSTANCE_SETTINGS))
    # the test's own process imports it too, and keeps the modules of other tests
    steps = f"steps_{secrets.token_hex(4)}"
    if sample is None:
        (folder / f"{steps}.py").write_text(MODULE_HEAD + module)
        document = {
            "name": name,
            "pipeline": f"{steps}:pipeline",
            **keys,
            "shards": {
                shard: {"tenants": list(tenants)} for shard, tenants in (shards or {}).items()
            },
        }
        (folder / "fleet.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    rig = Rig(folder, sample or name, sample or str(folder / "fleet.yaml"))
    path = list(sys.path)
    try:
        yield rig
    finally:
        rig.close()
        sys.path[:] = path


def reexecute(run_id: str, *, is_from_failure: bool) -> bool:
    """Re-execute a run with its job, config and tags, as the UI does; tell whether it succeeded."""
    with DagsterInstance.get() as instance:
        parent = instance.get_run_by_id(run_id)
        assert parent is not None
        assert parent.job_code_origin is not None
        options = ReexecutionOptions(run_id)
        if is_from_failure:
            options = ReexecutionOptions.from_failure(run_id, instance)
        return execute_job(
            recon_job_from_origin(parent.job_code_origin),
            instance=instance,
            run_config=parent.run_config,
            tags=parent.tags,
            reexecution_options=options,
        ).success


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
