"""The tenants of a fleet file: names that Dagster can carry, each in one shard, with settings.

Takes nodes from `yaml_nodes`; ``${NAME}`` in settings is checked here and replaced in `settings`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenant_pipelines.errors import InvalidFleetFile
from tenant_pipelines.fleet.model import Tenant
from tenant_pipelines.fleet.names import tenant_name_problem
from tenant_pipelines.fleet.settings import has_malformed_placeholder
from tenant_pipelines.fleet.yaml_nodes import Node, describe, shortened
from tenant_pipelines.fleet.yaml_scalars import Misread

_WANTED = "a list of tenant names, or a mapping of tenant names to their settings"
_NO_SETTINGS: Mapping[str, Any] = {}
_NO_LINES: Mapping[str, int] = {}


def read_tenants(path: Path, shards: Mapping[str, Node]) -> dict[str, dict[str, Tenant]]:
    """Return the tenants of each shard by name, in the file's order.

    Args:
        path: the fleet file, for errors.
        shards: the value of ``tenants`` of each shard.

    Raises:
        InvalidFleetFile: a shard has no tenants, a name is unusable or occurs twice in the fleet,
            or a setting is not what its author can have meant.
    """
    seen: dict[str, str] = {}
    tenants: dict[str, dict[str, Tenant]] = {}
    for shard, node in shards.items():
        of_shard = tenants[shard] = {}
        for tenant in _tenants(path, shard, node):
            if (earlier := seen.setdefault(tenant.name, shard)) != shard or tenant.name in of_shard:
                twice = "twice" if earlier == shard else f"in the shards {earlier!r} and {shard!r}"
                raise InvalidFleetFile(
                    path=path,
                    line=tenant.line,
                    found=f"the tenant {shortened(tenant.name)} {twice}, "
                    f"first on line {tenants[earlier][tenant.name].line}",
                    wanted="each tenant once in the fleet",
                    fix="Remove it from one of the two lines.",
                )
            of_shard[tenant.name] = tenant
    return tenants


def _tenants(path: Path, shard: str, node: Node) -> "list[Tenant]":
    """Return the tenants of one shard, written as a list or as a mapping."""
    if isinstance(node.value, list) and node.value:
        return [_named(path, inner) for inner in node.value]
    if isinstance(node.value, dict) and node.value:
        return [_with_settings(path, name, inner) for name, inner in node.value.items()]
    empty = node.value is None or isinstance(node.value, list | dict)
    raise InvalidFleetFile(
        path=path,
        line=node.line,
        found="no tenants" if empty else describe(node),
        wanted=f"{_WANTED} in the shard {shard!r}",
        fix="Write tenants: [acme], or remove the shard.",
    )


def _named(path: Path, node: Node) -> Tenant:
    if isinstance(node.value, str):
        return Tenant(
            name=_checked_name(path, node.value, node.line),
            settings=_NO_SETTINGS,
            line=node.line,
            setting_lines=_NO_LINES,
        )
    nested = isinstance(node.value, list | dict)
    raise InvalidFleetFile(
        path=path,
        line=node.line,
        found=f"{describe(node)} in a list of tenants",
        wanted="a tenant name (text)",
        fix="Tenants with settings make a mapping: tenants: {acme: {source: x}}."
        if nested
        else f'Quote it: "{node.text[:80]}".',
    )


def _with_settings(path: Path, name: str, node: Node) -> Tenant:
    _checked_name(path, name, node.line)
    if node.value is None or node.value == {}:
        return Tenant(name=name, settings=_NO_SETTINGS, line=node.line, setting_lines=_NO_LINES)
    if not isinstance(node.value, dict):
        raise InvalidFleetFile(
            path=path,
            line=node.line,
            found=f"something else than a mapping as the settings of tenant {shortened(name)}",
            wanted="settings by name",
            fix="Write acme: {source: x}, or acme: {} without settings.",
        )
    lines: dict[str, int] = {}
    settings = _setting(path, name, node, "", lines)
    return Tenant(
        name=name,
        settings=settings,
        line=node.line,
        setting_lines={where: line for where, line in lines.items() if line != node.line}
        or _NO_LINES,
    )


def _setting(path: Path, tenant: str, node: Node, where: str, lines: dict[str, int]) -> Any:
    """Return a setting as plain data and note its lines; values are never printed."""
    value = node.value
    if isinstance(value, dict):
        for key in value:
            if "${" in key:
                raise InvalidFleetFile(
                    path=path,
                    line=value[key].line,
                    found=f"'${{' in the name of a setting of tenant {shortened(tenant)}",
                    wanted="${NAME} in values only",
                    fix="Write the name out.",
                )
        named: list[tuple[str, Node]] = list(value.items())
    elif isinstance(value, list):
        named = [(str(index), inner) for index, inner in enumerate(value)]
    else:
        _check_scalar(path, tenant, node, where)
        return value
    converted = {}
    for key, inner in named:
        place = f"{where}.{key}" if where else key
        lines[place] = inner.line
        converted[key] = _setting(path, tenant, inner, place, lines)
    return converted if isinstance(value, dict) else list(converted.values())


def _check_scalar(path: Path, tenant: str, node: Node, where: str) -> None:
    if isinstance(node.value, Misread):
        raise InvalidFleetFile(
            path=path,
            line=node.line,
            found=f"a value of the setting {where!r} of tenant {shortened(tenant)} "
            f"that YAML reads as {node.value.reads_as}",
            wanted="text in quotes, or true, false, or a decimal number",
            fix="Quote it.",
        )
    if isinstance(node.value, str) and has_malformed_placeholder(node.value):
        raise InvalidFleetFile(
            path=path,
            line=node.line,
            found=f"'${{' without a variable's name and '}}' in the setting {where!r} "
            f"of tenant {shortened(tenant)}",
            wanted="${NAME}: letters, digits and underscores, no digit first",
            fix="Mend the name, or write $${ for a literal ${.",
        )


def _checked_name(path: Path, name: str, line: int) -> str:
    if problem := tenant_name_problem(name):
        raise InvalidFleetFile(
            path=path,
            line=line,
            found=f"the tenant name {shortened(name)}: {problem}",
            wanted="one line of text that Dagster can carry as a partition key",
            fix="Rename the tenant.",
        )
    return name
