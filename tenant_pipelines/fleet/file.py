"""Reads a fleet.yaml into a Fleet: all of it is checked before anything is written.

Whatever is wrong with the file is one InvalidFleetFile with its line. Reading imports the
pipeline's module and reads no variable but TENANT_PIPELINES_STATE: ``${NAME}`` in settings is
replaced at run time, in `settings`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from tenant_pipelines.errors import InvalidFleetFile, UnknownName
from tenant_pipelines.fleet.ages import parse_age
from tenant_pipelines.fleet.importing import import_pipeline
from tenant_pipelines.fleet.model import Fleet, Limits, Resume, Shard
from tenant_pipelines.fleet.places import SAMPLES, artifacts_folder, state_folder, warehouse_url
from tenant_pipelines.fleet.schema import Defaults, ShardEntry, check
from tenant_pipelines.fleet.tenants import read_tenants
from tenant_pipelines.fleet.yaml_nodes import read_yaml


def load_fleet(path: str | Path, *, environ: Mapping[str, str] | None = None) -> Fleet:
    """Read a fleet file.

    Args:
        path: the file; a relative one counts from the working directory, the fleet itself depends
            on the file's real place only.
        environ: where TENANT_PIPELINES_STATE is read; default ``os.environ``.

    Returns:
        The fleet, with every path absolute.

    Raises:
        InvalidFleetFile: the file, or the pipeline it names, cannot be used; nothing was written.
    """
    environ = os.environ if environ is None else environ
    path = _real(path)
    root = read_yaml(path)
    entry = check(path, root)
    tenants = read_tenants(path, {name: shard.tenants for name, shard in entry.shards.items()})
    state = state_folder(path, entry.name, environ)
    artifacts = artifacts_folder(path, root.line_of("artifacts"), entry.artifacts, state)
    warehouse = None
    if entry.warehouse:
        warehouse = warehouse_url(path, root.line_of("warehouse"), entry.warehouse, state)
    pipeline = import_pipeline(
        path, root.line_of("pipeline"), entry.pipeline, has_warehouse=warehouse is not None
    )
    return Fleet(
        name=entry.name,
        path=path,
        pipeline=pipeline,
        shards={
            name: Shard(name=name, tenants=tenants[name], limits=_limits(shard, entry.defaults))
            for name, shard in entry.shards.items()
        },
        state=state,
        processes=entry.processes,
        schedule=entry.schedule or None,
        stale_after=parse_age(entry.stale_after),
        resume=Resume(attempts=entry.resume.attempts, wait_seconds=entry.resume.wait_seconds),
        warehouse=warehouse,
        artifacts=artifacts,
    )


def sample_fleets() -> dict[str, Path]:
    """Return the fleet files that come with the package, by the names of their folders."""
    return {file.parent.name: file for file in sorted(SAMPLES.glob("*/fleet.yaml"))}


def find_fleet(name_or_path: str) -> Path:
    """Return the fleet file that a person means: a sample by its name, or a file by its path.

    Args:
        name_or_path: a sample's name goes first; write ``./name`` for a file of that name.

    Raises:
        InvalidFleetFile: a path without a file, or a folder.
        UnknownName: neither a sample nor a path.
    """
    samples = sample_fleets()
    if name_or_path in samples:
        return samples[name_or_path]
    path = _real(name_or_path)
    if os.path.isfile(path):  # noqa: PTH113 - False for what is no path, where Path raises
        return path
    if not _looks_like_a_path(name_or_path) and not os.path.exists(path):  # noqa: PTH110
        raise UnknownName(
            kind="sample fleet or fleet file",
            name=name_or_path,
            known=list(samples),
            place=str(path.parent),
        )
    inside = path / "fleet.yaml"
    is_folder = os.path.isdir(path)  # noqa: PTH112
    raise InvalidFleetFile(
        path=path,
        line=None,
        found="a directory" if is_folder else "no such file",
        wanted=f"a fleet file, or a sample ({', '.join(samples) or 'none'})",
        fix=f"Give {inside}." if is_folder else "Check the path.",
    )


def _looks_like_a_path(text: str) -> bool:
    return os.sep in text or text.endswith((".yaml", ".yml"))


def _real(path: str | Path) -> Path:
    """Return the file itself, so that a fleet has one state under all names of its file."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:
        raise InvalidFleetFile(
            path=Path(repr(str(path))),
            line=None,
            found="a path that no file can have",
            wanted="the path of a fleet file",
            fix="Check the path.",
        ) from None


def _limits(shard: ShardEntry, defaults: Defaults) -> Limits:
    given = shard.model_fields_set
    return Limits(
        max_concurrent=(shard if "max_concurrent" in given else defaults).max_concurrent,
        runs_at_once=(shard if "runs_at_once" in given else defaults).runs_at_once,
    )
