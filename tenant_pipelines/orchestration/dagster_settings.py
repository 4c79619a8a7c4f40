"""What Dagster's own settings and releases are, read through its non-public parts.

Pinned to 1.13: ``run_monitoring_settings``, ``run_retries_enabled`` and ``get_concurrency_config``
are how its daemon reads dagster.yaml; ``library_version_from_core_version`` is how it numbers its
integration libraries. Writes nothing.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions

import yaml
from dagster import DagsterInstance
from dagster_shared.libraries import library_version_from_core_version

from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.orchestration.instance import Home, open_instance

# sections of dagster.yaml that put the instance elsewhere than into its folder
_ELSEWHERE = {"storage", "run_storage", "event_log_storage", "instance_class"}
# released with Dagster itself, and without a requirement that says of which release they are
_CORE = {"dagster", "dagster-pipes", "dagster-shared"}
_PIN = re.compile(r"dagster\s*\(?==\s*([^\s;,)]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of an instance that decide whether a crash leaves it able to work.

    Attributes:
        granularity: of pools: ``op`` or ``run``; op where the file says nothing.
        default_pool_limit: slots of a pool without a limit of its own; None for no limit.
        is_monitored: whether the daemon watches runs; it frees no slots otherwise.
        free_slots_after_seconds: from the end of a run; None for never.
        has_run_retries: whether the daemon starts failed runs again.
    """

    granularity: str = "op"
    default_pool_limit: int | None
    is_monitored: bool
    free_slots_after_seconds: int | None
    has_run_retries: bool


def read_settings(instance: DagsterInstance) -> Settings:
    """Return the settings that the instance works with."""
    pools = instance.get_concurrency_config().pool_config
    monitoring = instance.run_monitoring_settings or {}
    return Settings(
        granularity=pools.pool_granularity.value if pools.pool_granularity else "op",
        default_pool_limit=pools.default_pool_limit,
        is_monitored=bool(monitoring.get("enabled", False)),
        # the daemon reads 0 as never
        free_slots_after_seconds=monitoring.get("free_slots_after_run_end_seconds") or None,
        has_run_retries=bool(instance.run_retries_enabled),
    )


def open_existing(home: Home) -> DagsterInstance | None:
    """Open an instance that is there already, making nothing; None where there is none.

    Raises:
        InvalidRequest: its dagster.yaml is not valid.
    """
    settings = home.path / "dagster.yaml"
    # Dagster's default storage makes this folder when it is first opened
    is_there = (home.path / "history").is_dir()
    if settings.is_file():
        try:
            written = yaml.safe_load(settings.read_text(encoding="utf-8")) or {}
            is_there = is_there or bool(_ELSEWHERE & set(written))
        except (OSError, TypeError, ValueError, yaml.YAMLError):
            is_there = True  # opening it says what is wrong
        return open_instance(home) if is_there else None
    if not is_there:
        return None
    os.environ["DAGSTER_HOME"] = str(home.path)
    try:
        return DagsterInstance.from_config(str(home.path))
    except Exception as error:
        raise InvalidRequest(
            place=str(home.path),
            found=f"an instance that cannot be opened ({error})",
            wanted="a folder that can be read and written",
            fix="Mend it, or point DAGSTER_HOME to another folder.",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """An installed distribution of Dagster's.

    Attributes:
        name: of the distribution.
        version: installed.
        wanted: the version that was released together with the installed Dagster.
        is_right: whether it is of that release.
    """

    name: str
    version: str
    wanted: str
    is_right: bool


def releases(found: Iterable[Distribution] | None = None) -> list[Release]:
    """Return the distributions that are released together with Dagster, by name.

    Dagster's own libraries require the very release of Dagster that they belong to; distributions
    of others, with version numbers of their own, require a range and are left out.

    Args:
        found: the distributions to look at; the installed ones by default.
    """
    versions: dict[str, str] = {}
    pins: dict[str, set[str]] = {}
    for one in distributions() if found is None else found:
        # metadata of a broken installation can lack its name
        name = _normalized(one.metadata["Name"] or "")
        # what comes first on the path is what is imported
        if name.startswith("dagster") and name not in versions:
            versions[name] = one.version
            pins[name] = _pins(one)
    core = versions.get("dagster")
    if core is None:
        return []
    library = library_version_from_core_version(core)
    return [
        Release(
            name=name,
            version=version,
            wanted=library if version.startswith("0.") else core,
            is_right=version == core if name in _CORE else pins[name] == {core},
        )
        for name, version in sorted(versions.items())
        if name in _CORE or pins[name]
    ]


def _pins(one: Distribution) -> set[str]:
    """Return the exact releases of Dagster that a distribution requires."""
    found = (_PIN.match(requirement) for requirement in one.requires or ())
    return {match[1] for match in found if match}


def _normalized(name: str) -> str:
    # packaging.python.org, "Names and normalization"
    return re.sub(r"[-_.]+", "-", name).lower()
