"""A real ``dagster dev`` over a fleet in a folder, asked what the UI asks.

The webserver and the daemon run in a session of their own on a free port of this host; leaving the
rig kills all of it, whatever a test did. Mutations carry what the UI of Dagster 1.13 sends for the
same click, and queries read what its pages show. Nothing here knows the journals.
"""

import contextlib
import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.crash.rig import Rig, Started, rig_of

# far above what a loaded machine of two cores needs: a backfill waits for two ticks of 30 s
DEADLINE_SECONDS = 600.0
_POLL_SECONDS = 0.2
# dagster dev names the code location by its module
LOCATION = "tenant_pipelines.definitions"
REPOSITORY = "__repository__"
_ASSET_JOB = "__ASSET_JOB"

SHARDS = {
    "shard_1": ["acme", "globex"],
    "shard_2": ["initech", "umbrella", "hooli"],
    "shard_3": ["wonka"],
}
STEPS = ("extract", "transform", "load")

# transform fails for a tenant while there is a file fault.TENANT, and waits while there is a file
# gate.TENANT and no file go.TENANT
STORY = """
@step
def extract(ctx: StepContext) -> dict:
    with noted(HERE, ctx):
        return {"tenant": ctx.tenant, "cycle": ctx.cycle}

@step
def transform(ctx: StepContext, extract: dict) -> dict:
    with noted(HERE, ctx):
        if (HERE / f"gate.{ctx.tenant}").exists():
            wait_for(HERE / f"go.{ctx.tenant}")
        if (HERE / f"fault.{ctx.tenant}").exists():
            raise RuntimeError("the vendor's file is broken")
        return extract

@step
def load(ctx: StepContext, transform: dict) -> None:
    with noted(HERE, ctx):
        pass

pipeline = Pipeline([extract, transform, load])
"""

_ENDED_RUN = {"SUCCESS", "FAILURE", "CANCELED"}
_ENDED_BACKFILL = {"COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED"}

_PID = re.compile(r"\(pid: (\d+)\)")

_PYTHON_ERROR = "... on PythonError { message }"
_LAUNCHED_BACKFILL = """{
  __typename
  ... on LaunchBackfillSuccess { backfillId }
  ... on PartitionKeysNotFoundError { message }
  ... on UnauthorizedError { message }
  ... on PythonError { message }
}"""
_LAUNCHED_RUN = """{
  __typename
  ... on LaunchRunSuccess { run { id } }
  ... on RunConfigValidationInvalid { errors { message } }
  ... on PipelineNotFoundError { message }
  ... on InvalidSubsetError { message }
  ... on ConflictingExecutionParamsError { message }
  ... on PythonError { message }
}"""


class Refused(Exception):
    """Dagster answered a click with an error; its text is what the UI shows."""


@dataclass(frozen=True, slots=True)
class Made:
    """One materialization as the UI shows it.

    Attributes:
        cell: ``tenant:step``.
        run_id: the run that logged it.
        version: its data version.
        metadata: labels and values, of text, numbers and booleans.
    """

    cell: str
    run_id: str
    version: str
    metadata: Mapping[str, Any]

    @property
    def is_restated(self) -> bool:
        """Whether it stands for work that an earlier run did."""
        return self.metadata.get("reused") is True


@dataclass(frozen=True, slots=True)
class Check:
    """The newest result of an asset check.

    Attributes:
        status: such as SUCCEEDED or FAILED.
        metadata: labels and values; a table is a list of its rows.
    """

    status: str
    description: str
    metadata: Mapping[str, Any]


@dataclass(slots=True)
class Dev:
    """A fleet with a ``dagster dev`` of its own.

    Attributes:
        rig: the fleet, its folder and its processes.
        port: of the webserver.
        server: the running ``dagster dev``.
    """

    rig: Rig
    port: int
    server: Started

    def restart(self) -> None:
        """Start ``dagster dev`` again, over the same home; the one before must be gone."""
        assert not self.server.members(), "dagster dev is still there"
        self.server = self.rig.start_dev(self.port)
        self._wait_until_up()

    def mend(self) -> None:
        """Take away every file by which a test made the steps fail or wait."""
        for kind in ("fault", "gate", "go"):
            for file in self.rig.folder.glob(f"{kind}.*"):
                file.unlink()

    def kill(self) -> None:
        """Kill the webserver, the daemon, the code server and every run, at one instant."""
        self.server.kill()

    def _wait_until_up(self) -> None:
        def is_up() -> bool:
            assert not self.server.has_ended(), self.server.err.read_text()
            try:
                answer = self.ask(
                    "{ workspaceOrError { ... on Workspace { locationEntries { loadStatus"
                    " locationOrLoadError { __typename " + _PYTHON_ERROR + " } } } }"
                    " instance { daemonHealth { allDaemonStatuses"
                    " { daemonType required healthy } } } }"
                )
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                return False
            entries = answer["workspaceOrError"].get("locationEntries") or []
            for entry in entries:
                loaded = entry["locationOrLoadError"] or {}
                assert loaded.get("__typename") != "PythonError", loaded["message"]
            daemons = answer["instance"]["daemonHealth"]["allDaemonStatuses"]
            return (
                bool(entries)
                and all(entry["loadStatus"] == "LOADED" for entry in entries)
                and all(one["healthy"] for one in daemons if one["required"])
            )

        self.wait(is_up, "dagster dev up")

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Poll until something is so; fail with its name and the server's log at the deadline."""
        until = time.monotonic() + DEADLINE_SECONDS
        while not is_so():
            assert time.monotonic() < until, (
                f"not within {DEADLINE_SECONDS} s: {what}\n{self.server.err.read_text()[-4000:]}"
            )
            time.sleep(_POLL_SECONDS)

    def ask(self, query: str, **variables: Any) -> Any:
        """Send a query or mutation; return its data.

        Raises:
            AssertionError: the query itself is wrong.
        """
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            # a mutation that is refused answers with 500, and its data all the same
            document = json.load(error)
        assert not document.get("errors"), document["errors"]
        return document["data"]

    def backfill(
        self,
        *,
        shards: Collection[str] | None = None,
        steps: Sequence[str] = STEPS,
        partitions: Sequence[str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Launch a backfill as "Materialize all" does, or over named partitions; return its id."""
        picked = self.rig.fleet.shards if shards is None else shards
        params: dict[str, Any] = {
            "tags": _tags(tags),
            "assetSelection": [self._key(shard, step) for shard in picked for step in steps],
        }
        if partitions is None:
            params["allPartitions"] = True
        else:
            params |= {"partitionNames": list(partitions), "fromFailure": False}
        return self._backfill_id(
            self.ask(
                "mutation ($params: LaunchBackfillParams!) { launchPartitionBackfill"
                "(backfillParams: $params) " + _LAUNCHED_BACKFILL + " }",
                params=params,
            )["launchPartitionBackfill"]
        )

    def retry_backfill(self, backfill_id: str) -> str:
        """Press "Retry from failure" on a backfill's page; return the new backfill's id."""
        return self._backfill_id(
            self.ask(
                "mutation ($params: ReexecutionParams!) { reexecutePartitionBackfill"
                "(reexecutionParams: $params) " + _LAUNCHED_BACKFILL + " }",
                params={"parentRunId": backfill_id, "strategy": "FROM_FAILURE"},
            )["reexecutePartitionBackfill"]
        )

    def materialize(
        self,
        shard: str,
        steps: Sequence[str],
        tenant: str | tuple[str, str],
        *,
        tags: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Materialize one partition, or a range as a single run, from the asset pages.

        Args:
            shard: name of the shard.
            steps: the steps whose assets are selected.
            tenant: the partition, or the first and the last of a range.
            tags: further run tags.
            config: op config of the shard's op, as typed into the launchpad.

        Returns:
            Id of the run.
        """
        given = dict(tags or {})
        if isinstance(tenant, str):
            given[names.PARTITION_TAG] = tenant
        else:
            given[names.RANGE_START_TAG], given[names.RANGE_END_TAG] = tenant
        keys = [self._key(shard, step) for step in steps]
        ops = {names.cells_op(self.rig.name, shard): {"config": dict(config or {})}}
        params = {
            "mode": "default",
            "executionMetadata": {"tags": _tags(given)},
            "runConfigData": {"ops": ops} if config is not None else {},
            "selector": {
                "repositoryLocationName": LOCATION,
                "repositoryName": REPOSITORY,
                "pipelineName": _ASSET_JOB,
                "assetSelection": keys,
                "assetCheckSelection": self._checks_of(keys),
            },
        }
        return self._run_id(
            self.ask(
                "mutation ($params: ExecutionParams!) { launchPipelineExecution"
                "(executionParams: $params) " + _LAUNCHED_RUN + " }",
                params=params,
            )["launchPipelineExecution"]
        )

    def launch_job(
        self,
        job: str,
        *,
        tags: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """Launch a job from its launchpad; return the run's id."""
        params = {
            "mode": "default",
            "executionMetadata": {"tags": _tags(tags)},
            "runConfigData": dict(config or {}),
            "selector": {
                "repositoryLocationName": LOCATION,
                "repositoryName": REPOSITORY,
                "pipelineName": job,
            },
        }
        return self._run_id(
            self.ask(
                "mutation ($params: ExecutionParams!) { launchPipelineExecution"
                "(executionParams: $params) " + _LAUNCHED_RUN + " }",
                params=params,
            )["launchPipelineExecution"]
        )

    def reexecute(self, run_id: str, strategy: str) -> str:
        """Press "Re-execute" on a run's page; return the new run's id.

        Args:
            run_id: the run.
            strategy: FROM_FAILURE, ALL_STEPS or FROM_ASSET_FAILURE.

        Raises:
            Refused: Dagster launched nothing.
        """
        return self._run_id(
            self.ask(
                "mutation ($params: ReexecutionParams!) { launchPipelineReexecution"
                "(reexecutionParams: $params) " + _LAUNCHED_RUN + " }",
                params={"parentRunId": run_id, "strategy": strategy},
            )["launchPipelineReexecution"]
        )

    def terminate(self, run_id: str) -> None:
        """Press "Terminate" on a run's page."""
        answer = self.ask(
            "mutation ($id: String!) { terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE)"
            " { __typename ... on TerminateRunFailure { message } " + _PYTHON_ERROR + " } }",
            id=run_id,
        )["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def stop_sensor(self, name: str) -> None:
        """Switch a sensor off, if there is one of that name."""
        selector = {
            "repositoryLocationName": LOCATION,
            "repositoryName": REPOSITORY,
            "sensorName": name,
        }
        found = self.ask(
            "query ($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector)"
            " { __typename ... on Sensor { sensorState { id } } } }",
            selector=selector,
        )["sensorOrError"]
        if found["__typename"] != "Sensor":
            return
        answer = self.ask(
            "mutation ($id: String!) { stopSensor(id: $id) { __typename " + _PYTHON_ERROR + " } }",
            id=found["sensorState"]["id"],
        )["stopSensor"]
        assert answer["__typename"] == "StopSensorMutationResult", answer

    def wait_for_backfill(self, backfill_id: str) -> str:
        """Wait until a backfill has ended and return how."""
        self.wait(
            lambda: self.backfill_status(backfill_id) in _ENDED_BACKFILL,
            f"the end of backfill {backfill_id}",
        )
        return self.backfill_status(backfill_id)

    def backfill_status(self, backfill_id: str) -> str:
        """Return the status that the backfill's page shows."""
        return str(self._backfill(backfill_id)["status"])

    def backfill_runs(self, backfill_id: str) -> dict[str, list[str]]:
        """Return the ids of a backfill's runs by shard."""
        found: dict[str, list[str]] = {}
        for run in self._backfill(backfill_id)["runs"]:
            shards = {key["path"][1] for key in run["assetSelection"]}
            assert len(shards) == 1, shards
            found.setdefault(shards.pop(), []).append(run["id"])
        return found

    def _backfill(self, backfill_id: str) -> Any:
        return self.ask(
            "query ($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on"
            " PartitionBackfill { status runs { id assetSelection { path } } } } }",
            id=backfill_id,
        )["partitionBackfillOrError"]

    def wait_for_run(self, run_id: str) -> str:
        """Wait until a run has ended and return how."""
        self.wait(lambda: self.run_status(run_id) in _ENDED_RUN, f"the end of run {run_id}")
        return self.run_status(run_id)

    def run_status(self, run_id: str) -> str:
        """Return the status that the run's page shows."""
        return str(self._run(run_id)["status"])

    def run_tags(self, run_id: str) -> dict[str, str]:
        """Return the tags of a run."""
        return {tag["key"]: tag["value"] for tag in self._run(run_id)["tags"]}

    def _run(self, run_id: str) -> Any:
        return self.ask(
            "query ($id: ID!) { runOrError(runId: $id) { ... on Run"
            " { status tags { key value } } } }",
            id=run_id,
        )["runOrError"]

    def run_ids(self) -> list[str]:
        """Return the ids of all runs, the newest first."""
        answer = self.ask("{ runsOrError { ... on Runs { results { id } } } }")
        return [run["id"] for run in answer["runsOrError"]["results"]]

    def messages(self, run_id: str) -> list[str]:
        """Return the text of every line of a run's page: messages, and errors of steps."""
        found: list[str] = []
        for event in self._events(run_id):
            found.append(event["message"])
            if event.get("error"):
                found.append(event["error"]["message"])
            failure = event.get("failureMetadata")
            if failure:
                found.append(failure["description"] or "")
        return found

    def processes(self, run_id: str) -> set[int]:
        """Return the processes that a run's page names: its worker's and its steps'."""
        return {int(pid) for line in self.messages(run_id) for pid in _PID.findall(line)}

    def made_by(self, run_id: str) -> list[Made]:
        """Return the materializations of a run, in order."""
        return [
            _made(event)
            for event in self._events(run_id)
            if event["__typename"] == "MaterializationEvent"
        ]

    def _events(self, run_id: str) -> Iterator[Any]:
        cursor = None
        while True:
            page = self.ask(
                "query ($id: ID!, $cursor: String) { logsForRun(runId: $id, afterCursor: $cursor)"
                " { ... on EventConnection { hasMore cursor events { __typename"
                " ... on MessageEvent { message runId }"
                " ... on ErrorEvent { error { message } }"
                " ... on ExecutionStepFailureEvent { failureMetadata { description } }"
                " ... on MaterializationEvent {" + _MADE + "} } } } }",
                id=run_id,
                cursor=cursor,
            )["logsForRun"]
            yield from page["events"]
            if not page["hasMore"]:
                return
            cursor = page["cursor"]

    def shown(self, *shards: str) -> dict[str, str]:
        """Return the colour of each ``tenant:step``, as the partition bars have it.

        Args:
            shards: only these; all when there is none.
        """
        found: dict[str, str] = {}
        # the last one is whatever is not materialized, failed ones included
        colours = {
            "materializedPartitions": "green",
            "failedPartitions": "red",
            "materializingPartitions": "running",
            "unmaterializedPartitions": "none",
        }
        for node in self._nodes(
            "assetPartitionStatuses { ... on DefaultPartitionStatuses {"
            + " ".join(colours)
            + "} } partitionStats { numMaterialized numFailed numMaterializing numPartitions }",
            shards,
        ):
            step = node["assetKey"]["path"][-1]
            statuses = node["assetPartitionStatuses"]
            here: dict[str, str] = {}
            for group, colour in colours.items():
                for tenant in statuses[group]:
                    before = here.setdefault(tenant, colour)
                    assert colour in {before, "none"}, f"{tenant}:{step} is {before} and {colour}"
            count = list(here.values()).count
            # the asset's own page counts by another way
            assert node["partitionStats"] == {
                "numMaterialized": count("green"),
                "numFailed": count("red"),
                "numMaterializing": count("running"),
                "numPartitions": len(here),
            }
            found |= {f"{tenant}:{step}": colour for tenant, colour in here.items()}
        return found

    def newest(self, *shards: str) -> dict[str, Made]:
        """Return the newest materialization of each ``tenant:step`` that has one."""
        found: dict[str, Made] = {}
        for node in self._nodes("latestMaterializationByPartition { runId" + _MADE + "}", shards):
            for event in node["latestMaterializationByPartition"]:
                if event is not None:
                    made = _made(event)
                    found[made.cell] = made
        return found

    def checks(self, shard: str) -> dict[str, Check]:
        """Return the newest result of each check on a shard's assets, by name."""
        found: dict[str, Check] = {}
        for node in self._nodes(
            "assetChecksOrError { ... on AssetChecks { checks { name"
            " executionForLatestMaterialization { status evaluation { description"
            " metadataEntries {" + _METADATA + "} } } } } }",
            (shard,),
        ):
            for check in node["assetChecksOrError"].get("checks", []):
                done = check["executionForLatestMaterialization"]
                if done is not None:
                    evaluation = done["evaluation"] or {}
                    found[check["name"]] = Check(
                        done["status"],
                        evaluation.get("description") or "",
                        _values(evaluation.get("metadataEntries") or []),
                    )
        return found

    def slots_held(self) -> dict[str, list[str]]:
        """Return the runs that hold slots of each pool, of the pools that have any."""
        pools = self.ask(
            "{ instance { concurrencyLimits { concurrencyKey claimedSlots { runId } } } }"
        )["instance"]["concurrencyLimits"]
        return {
            pool["concurrencyKey"]: [slot["runId"] for slot in pool["claimedSlots"]]
            for pool in pools
            if pool["claimedSlots"]
        }

    def _nodes(self, fields: str, shards: Collection[str]) -> list[Any]:
        keys = [
            self._key(shard, step) for shard in shards or self.rig.fleet.shards for step in STEPS
        ]
        nodes: list[Any] = self.ask(
            "query ($keys: [AssetKeyInput!]) { assetNodes(assetKeys: $keys)"
            " { assetKey { path } " + fields + " } }",
            keys=keys,
        )["assetNodes"]
        assert len(nodes) == len(keys), [node["assetKey"] for node in nodes]
        return nodes

    def _checks_of(self, keys: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the checks that the UI selects along with assets."""
        nodes = self.ask(
            "query ($keys: [AssetKeyInput!]) { assetNodes(assetKeys: $keys) { assetKey { path }"
            " assetChecksOrError { ... on AssetChecks { checks { name jobNames } } } } }",
            keys=keys,
        )["assetNodes"]
        return [
            {"assetKey": {"path": node["assetKey"]["path"]}, "name": check["name"]}
            for node in nodes
            for check in node["assetChecksOrError"].get("checks", [])
            if _ASSET_JOB in check["jobNames"]
        ]

    def _key(self, shard: str, step: str) -> dict[str, list[str]]:
        return {"path": list(names.asset_key(self.rig.name, shard, step).path)}

    @staticmethod
    def _run_id(answer: Any) -> str:
        if answer["__typename"] != "LaunchRunSuccess":
            raise Refused(json.dumps(answer))
        return str(answer["run"]["id"])

    @staticmethod
    def _backfill_id(answer: Any) -> str:
        if answer["__typename"] != "LaunchBackfillSuccess":
            raise Refused(json.dumps(answer))
        return str(answer["backfillId"])


_METADATA = (
    " label ... on TextMetadataEntry { text } ... on IntMetadataEntry { intRepr }"
    " ... on FloatMetadataEntry { floatValue } ... on BoolMetadataEntry { boolValue }"
    " ... on TableMetadataEntry { table { records } } ... on MarkdownMetadataEntry { mdStr }"
)
_MADE = " partition assetKey { path } tags { key value } runId metadataEntries {" + _METADATA + "} "


def _made(event: Any) -> Made:
    versions = [tag["value"] for tag in event["tags"] if tag["key"] == names.DATA_VERSION_TAG]
    return Made(
        cell=f"{event['partition']}:{event['assetKey']['path'][-1]}",
        run_id=event["runId"],
        version=versions[0],
        metadata=_values(event["metadataEntries"]),
    )


def _values(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in entries:
        if "intRepr" in entry:
            found[entry["label"]] = int(entry["intRepr"])
        elif "table" in entry:
            found[entry["label"]] = [json.loads(row) for row in entry["table"]["records"]]
        else:
            for kind in ("text", "floatValue", "boolValue", "mdStr"):
                if kind in entry:
                    found[entry["label"]] = entry[kind]
    return found


def _tags(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in (tags or {}).items()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def dev_of(
    folder: Path,
    *,
    name: str,
    module: str = STORY,
    shards: Mapping[str, Sequence[str]] = SHARDS,
    first: str = "sync",
    resumes: bool = False,
    **keys: Any,
) -> Iterator[Dev]:
    """Write a fleet and start ``dagster dev`` over it; kill everything at the end.

    Args:
        folder: of the test, empty.
        name: name of the fleet.
        module: see ``rig_of``.
        shards: the tenants of each shard.
        first: the command that makes Dagster know the tenants: ``sync``, or ``run``, which does
            the first cycle too.
        resumes: leave the sensor on that starts runs by itself.
        keys: further keys of the fleet file.
    """
    with rig_of(folder, module=module, shards=shards, name=name, **keys) as rig:
        ended = rig.call(first, "--json")
        assert ended.code == 0, ended.err
        port = _free_port()
        dev = Dev(rig, port, rig.start_dev(port))
        dev._wait_until_up()
        if not resumes:
            dev.stop_sensor(names.resume(name))
        yield dev
