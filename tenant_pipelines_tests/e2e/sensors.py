"""The caretaker's ticks and the partition keys, as the UI shows them."""

import time
from typing import Any

from tenant_pipelines.orchestration import names
from tenant_pipelines_tests.e2e.dev import LOCATION, REPOSITORY, Dev


def _selector(sensor: str) -> dict[str, str]:
    return {
        "repositoryLocationName": LOCATION,
        "repositoryName": REPOSITORY,
        "sensorName": sensor,
    }


def ticks(dev: Dev, sensor: str) -> list[Any]:
    """Return the newest ticks of a sensor, the newest first."""
    found: list[Any] = dev.ask(
        "query ($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector)"
        " { ... on Sensor { sensorState { ticks(limit: 20)"
        " { timestamp endTimestamp status skipReason"
        " error { message errorChain { error { message } } } } } } } }",
        selector=_selector(sensor),
    )["sensorOrError"]["sensorState"]["ticks"]
    return found


def two_ticks_later(dev: Dev) -> None:
    """Return when the second tick of the caretaker that begins from now on has ended."""
    since = time.time()

    def has_ticked() -> bool:
        ended = [
            tick
            for tick in ticks(dev, names.caretaker(dev.rig.name))
            if tick["timestamp"] > since and tick["status"] != "STARTED"
        ]
        return len(ended) >= 2

    dev.wait(has_ticked, "two ticks of the caretaker")


def forget_cursor(dev: Dev, sensor: str) -> None:
    """Delete a sensor's cursor, as its page lets people do."""
    answer = dev.ask(
        "mutation ($selector: SensorSelector!) { setSensorCursor(sensorSelector: $selector,"
        " cursor: null) { __typename ... on PythonError { message } } }",
        selector=_selector(sensor),
    )["setSensorCursor"]
    assert answer["__typename"] == "Sensor", answer


def keys(dev: Dev, shard: str) -> list[str]:
    """Return a shard's partition keys in Dagster's order."""
    (node,) = dev.ask(
        "query ($keys: [AssetKeyInput!]) { assetNodes(assetKeys: $keys) { partitionKeys } }",
        keys=[{"path": list(names.asset_key(dev.rig.name, shard, "load").path)}],
    )["assetNodes"]
    return list(node["partitionKeys"])
