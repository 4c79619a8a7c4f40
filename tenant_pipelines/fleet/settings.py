"""A tenant's settings at run time: ``${NAME}`` replaced, and what of them must never be shown.

Pure functions. ``$${`` stands for a literal ``${``; every other ``${`` that is not followed by a
name and ``}`` is refused when the fleet file is read, see `has_malformed_placeholder`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from tenant_pipelines.errors import TenantSettingMissing
from tenant_pipelines.fleet.context import Settings
from tenant_pipelines.fleet.model import Tenant

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
_SECRET_NAME = re.compile("password|secret|token|key|credential", re.IGNORECASE)
# SQLAlchemy ends a password at the first "@", urllib at the last one before the path: take both
_URL_PASSWORDS = (
    re.compile(r"://[^:/@\s]*:([^@\s]+)@"),
    re.compile(r"://[^:/@\s]*:([^/\s]+)@"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSettings:
    """What a step gets, and what has to be kept out of everything that is shown.

    Attributes:
        settings: the tenant's settings, every ``${NAME}`` replaced.
        secrets: values that `redact` removes, without empty ones; never printed.
    """

    settings: Settings
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return f"ResolvedSettings({self.settings!r}, {len(self.secrets)} secrets)"


def has_malformed_placeholder(text: str) -> bool:
    """Tell whether ``text`` holds a ``${`` that names no variable and is not escaped."""
    return "${" in text and any(match[0] == "${" for match in _PLACEHOLDER.finditer(text))


def resolve_settings(
    fleet_path: Path, tenant: Tenant, environ: Mapping[str, str]
) -> ResolvedSettings:
    """Replace each ``${NAME}`` in the tenant's settings, at any depth, and collect its secrets.

    Secrets are the values read from the environment, alone and with the text around them, the
    passwords in URLs, and text under keys named like a password, secret, token, key or credential.

    Args:
        fleet_path: the fleet file, for errors.
        tenant: whose settings.
        environ: the variables; one that is set to nothing counts as set.

    Raises:
        TenantSettingMissing: a variable is not set; names file, line, setting and variable.
    """
    secrets: set[str] = set()

    def text_of(template: str, where: str, is_secret: bool) -> str:
        def value_of(match: re.Match[str]) -> str:
            if match[1] is None:
                return "${"
            if match[1] not in environ:
                raise TenantSettingMissing(
                    path=fleet_path,
                    line=_line_of(tenant, where),
                    tenant=tenant.name,
                    setting=where,
                    variable=match[1],
                )
            secrets.add(environ[match[1]])
            return environ[match[1]]

        text = _PLACEHOLDER.sub(value_of, template)
        from_environment = any(match[1] for match in _PLACEHOLDER.finditer(template))
        if from_environment or is_secret:
            secrets.add(text)
        secrets.update(_url_secrets(text))
        return text

    def resolved(value: Any, where: str, is_secret: bool) -> Any:
        if isinstance(value, str):
            return text_of(value, where, is_secret)
        if isinstance(value, Mapping):
            return {
                key: resolved(
                    inner,
                    f"{where}.{key}" if where else key,
                    is_secret or _SECRET_NAME.search(key) is not None,
                )
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [
                resolved(inner, f"{where}.{index}", is_secret) for index, inner in enumerate(value)
            ]
        if is_secret and isinstance(value, int | float) and not isinstance(value, bool):
            secrets.add(str(value))
        return value

    settings = Settings(resolved(tenant.settings, "", False))
    return ResolvedSettings(settings=settings, secrets=tuple(sorted(secrets - {""})))


def redact(text: str, secrets: Sequence[str]) -> str:
    """Return ``text`` with ``***`` for every secret, plain or as repr, JSON or URL would write it.

    Overlapping secrets become one ``***``, so that no piece of the longer one stays.
    """
    spans: list[tuple[int, int]] = []
    for form in {form for secret in secrets if secret for form in _forms(secret)}:
        start = text.find(form)
        while start >= 0:
            spans.append((start, start + len(form)))
            start = text.find(form, start + 1)
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:
            pieces += [text[done:start], "***"]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _line_of(tenant: Tenant, setting: str) -> int:
    """Return the line of a setting given by its dotted path: its own, or its nearest parent's."""
    while setting:
        if setting in tenant.setting_lines:
            return tenant.setting_lines[setting]
        setting = setting.rpartition(".")[0]
    return tenant.line


def _url_secrets(text: str) -> Iterator[str]:
    """Yield passwords in the URL ``text``, as written and percent-decoded."""
    if "://" not in text:
        return
    for pattern in _URL_PASSWORDS:
        for password in pattern.findall(text):
            yield from (password, unquote(password))
    for name, value in parse_qsl(text.partition("?")[2]):
        if _SECRET_NAME.search(name):
            yield value


def _forms(secret: str) -> Iterator[str]:
    """Yield the secret and how repr, JSON and URLs write it."""
    shown = repr(secret)[1:-1]
    yield from (
        secret,
        shown,
        shown.replace("'", "\\'"),
        repr(secret.encode(errors="replace"))[2:-1],
    )
    yield from (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    for safe in ("/", "", " +"):
        yield quote(secret, safe=safe, errors="surrogatepass")
    yield quote_plus(secret, errors="surrogatepass")
