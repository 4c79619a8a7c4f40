"""The keys of a fleet file: which exist, what each may hold, and how a wrong one is reported.

Checks types, ranges and names with pydantic and turns its findings into InvalidFleetFile with the
line. Tenants are left to `tenants`; paths, URLs and the pipeline's import to `file`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, InstanceOf, ValidationError
from pydantic_core import ErrorDetails

from tenant_pipelines.errors import InvalidFleetFile, nearest
from tenant_pipelines.fleet.ages import AGE_WANTED, parse_age
from tenant_pipelines.fleet.names import IDENTIFIER_WANTED, is_identifier
from tenant_pipelines.fleet.yaml_nodes import Node, describe, shortened

# of what later versions will accept, so that nobody takes it for a typing error
NOT_BUILT_YET = frozenset({"budget", "isolation", "max_memory_mb", "rate", "timeout_seconds"})

# may hold a URL with a password, so their values are never printed
_NOT_PRINTED = frozenset({"artifacts", "journal", "warehouse"})


def _identifier(name: str) -> str:
    if not is_identifier(name):
        raise ValueError(name)
    return name


def _cron(text: str) -> str:
    # Dagster knows neither seconds nor LW (dagster/_utils/schedules.py)
    if len(text.split()) != 5 or "LW" in text.upper():
        raise ValueError(text)
    try:
        CronSim(text, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ValueError(text) from error
    return text


def _age(text: str) -> str:
    if parse_age(text) is None:
        raise ValueError(text)
    return text


Identifier = Annotated[str, AfterValidator(_identifier)]
# each is a file lock or a thread
Cap = Annotated[int, Field(ge=1, le=10_000)]
# Dagster refuses a pool limit above 1000 (dagster/_utils/concurrency.py)
PoolLimit = Annotated[int, Field(ge=1, le=1_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Defaults(_Strict):
    """Limits of the shards that set none of their own."""

    max_concurrent: Cap = 2
    runs_at_once: PoolLimit = 4


class ResumeEntry(_Strict):
    """How often the resume sensor asks again for what a cycle has not finished."""

    attempts: Annotated[int, Field(ge=0, le=1_000)] = 8
    wait_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60


class ShardEntry(Defaults):
    """One shard; a limit it does not set is the fleet's, see ``model_fields_set``."""

    tenants: InstanceOf[Node]


class FleetEntry(_Strict):
    """The whole file; ``warehouse`` is '' when there is none."""

    name: Identifier
    pipeline: Annotated[str, Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$")]
    schedule: Annotated[str, AfterValidator(_cron)] = ""
    stale_after: Annotated[str, AfterValidator(_age)] = ""
    resume: ResumeEntry = ResumeEntry()
    processes: Cap = 16
    defaults: Defaults = Defaults()
    warehouse: Annotated[str, Field(min_length=1)] = ""
    journal: Literal["sqlite"] = "sqlite"
    artifacts: Annotated[str, Field(min_length=1)] = "{state}/artifacts"
    shards: Annotated[dict[Identifier, ShardEntry], Field(min_length=1)]


_CAP_WANTED = "a whole number from 1 to 10000"
_WANTED: Mapping[str, tuple[str, str]] = {
    "attempts": (
        "a whole number from 0 to 1000",
        "Write attempts: 8, attempts: 0 to never resume, or remove the key.",
    ),
    "artifacts": ("a folder", 'Write artifacts: "{state}/artifacts".'),
    "defaults": ("a mapping of limits", "Write defaults: {max_concurrent: 2}, or remove the key."),
    "journal": (
        "sqlite (journals in another database are not built yet)",
        "Write journal: sqlite, or remove the key.",
    ),
    "max_concurrent": (_CAP_WANTED, "Write max_concurrent: 2, or remove the key."),
    "name": (IDENTIFIER_WANTED, "Write name: my_fleet."),
    "pipeline": (
        "module.path:attribute, naming a Pipeline",
        "Write pipeline: my_company.pipelines:pipeline.",
    ),
    "processes": (_CAP_WANTED, "Write processes: 16, or remove the key."),
    "resume": (
        "a mapping of attempts and wait_seconds",
        "Write resume: {attempts: 8, wait_seconds: 60}, or remove the key.",
    ),
    "runs_at_once": ("a whole number from 1 to 1000", "Write runs_at_once: 4, or remove the key."),
    "schedule": (
        "five cron fields (minute, hour, day, month, weekday), in UTC",
        'Write schedule: "0 3 * * *", or remove the key.',
    ),
    "shards": (
        "at least one shard: a mapping of shard names to their tenants",
        "Write shards: {shard_1: {tenants: [acme]}}.",
    ),
    "stale_after": (AGE_WANTED, "Write stale_after: 24h, or remove the key."),
    "tenants": ("the tenants of the shard", "Write tenants: [acme], or remove the shard."),
    "wait_seconds": (
        "a whole number from 1 to 86400",
        "Write wait_seconds: 60, or remove the key.",
    ),
    "warehouse": (
        "a SQLAlchemy URL",
        "Write warehouse: sqlite:///{state}/warehouse.db, or remove the key.",
    ),
}
_SHARD_NAME = (IDENTIFIER_WANTED, "Rename the shard.")
_SHARD = ("a mapping with the shard's tenants", "Write shard_1: {tenants: [acme]}.")


def check(path: Path, root: Node) -> FleetEntry:
    """Return the file's content as typed values; its tenants stay nodes.

    Raises:
        InvalidFleetFile: a key is unknown, missing, or holds the wrong thing; the one that stands
            first in the file when there are several.
    """
    try:
        return FleetEntry.model_validate(_plain(root))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
    raise min((_invalid(path, root, problem) for problem in problems), key=_line)


def _line(error: InvalidFleetFile) -> int:
    line: int = error.facts["line"]
    return line


def _plain(node: Node) -> Any:
    """Return the node as plain data, the shards' tenants left as nodes."""
    if isinstance(node.value, dict):
        return {
            key: inner if key == "tenants" else _plain(inner) for key, inner in node.value.items()
        }
    if isinstance(node.value, list):
        return [_plain(inner) for inner in node.value]
    return node.value


def _invalid(path: Path, root: Node, problem: ErrorDetails) -> InvalidFleetFile:
    """Turn one finding of pydantic into our error, without a word or a value of pydantic's."""
    where = [str(part) for part in problem["loc"]]
    is_unknown = problem["type"] == "extra_forbidden"
    # pydantic's mark for a key of the mapping, unless the file really has a key of that name
    is_shard_name = len(where) == 3 and where[-1] == "[key]" and not is_unknown
    if is_shard_name:
        where.pop()
    node = root
    for part in where:
        if not isinstance(node.value, dict) or part not in node.value:
            break
        node = node.value[part]
    key = where[-1]
    if is_unknown:
        return _unknown_key(path, where, node.line)
    if is_shard_name:
        wanted, fix = _SHARD_NAME
        found = f"the shard name {shortened(key)}"
    else:
        wanted, fix = _SHARD if where[:-1] == ["shards"] else _WANTED[key]
        if problem["type"] == "missing":
            found = f"no {key!r}" + (f" in {where[-2]!r}" if len(where) > 1 else "")
        elif key in _NOT_PRINTED:
            found = f"a value of {key!r} that cannot be used"
        else:
            found = f"{describe(node)} as {key!r}"
    return InvalidFleetFile(path=path, line=node.line, found=found, wanted=wanted, fix=fix)


def _unknown_key(path: Path, where: list[str], line: int) -> InvalidFleetFile:
    """Report a key that does not exist here, with the key that was probably meant."""
    key = where[-1]
    places: Mapping[int, type[_Strict]] = {1: FleetEntry, 2: Defaults, 3: ShardEntry}
    model = ResumeEntry if where[0] == "resume" and len(where) == 2 else places[len(where)]
    known = list(model.model_fields)
    if key in NOT_BUILT_YET:
        return InvalidFleetFile(
            path=path,
            line=line,
            found=f"the key {key!r}, which is not built yet",
            wanted=f"only {', '.join(known)}",
            fix="Remove the key.",
        )
    hint = nearest(key, known)
    return InvalidFleetFile(
        path=path,
        line=line,
        found=f"the unknown key {shortened(key)}",
        wanted=", ".join(known),
        fix=f"{hint[:1].upper()}{hint[1:]}Rename or remove the key.",
    )
