"""Settings at run time: what is replaced, what is missing, what is never shown."""

import json
import pickle
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenant_pipelines.errors import TenantSettingMissing
from tenant_pipelines.fleet.model import Tenant
from tenant_pipelines.fleet.settings import (
    ResolvedSettings,
    has_malformed_placeholder,
    redact,
    resolve_settings,
)
from tenant_pipelines_tests.fleet.fleet_files import FleetFolder

FILE = Path("/srv/fleet.yaml")


def resolved(settings: dict[str, Any], **environ: str) -> ResolvedSettings:
    return resolve_settings(FILE, Tenant(name="acme", settings=settings), environ)


def test_a_number_under_a_secret_name_is_a_secret() -> None:
    """YAML reads an unquoted password of digits as a number."""
    tenant = Tenant(name="acme", settings={"password": 987654321, "port": 5432})
    resolved = resolve_settings(Path("fleet.yaml"), tenant, {})
    assert redact("login failed for 987654321 on 5432", resolved.secrets) == (
        "login failed for *** on 5432"
    )


def test_variables_are_replaced_at_any_depth() -> None:
    """Connection settings come nested as often as flat."""
    settings = {
        "url": "db://${USER}:${PASS}@h/${USER}",
        "tables": ["${USER}_a", {"name": "b"}, ["${PASS}"]],
        "nested": {"more": {"user": "${USER}"}},
        "port": 5432,
        "on": True,
        "nothing": None,
    }
    assert dict(resolved(settings, USER="u", PASS="p4ss").settings) == {
        "url": "db://u:p4ss@h/u",
        "tables": ["u_a", {"name": "b"}, ["p4ss"]],
        "nested": {"more": {"user": "u"}},
        "port": 5432,
        "on": True,
        "nothing": None,
    }


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("$${A}", "${A}"),
        ("$$${A}", "$${A}"),
        ("$A and $ and 5$", "$A and $ and 5$"),
        ("${A}${A}", "xx"),
        ("$${${A}}", "${x}"),
        ("{A}", "{A}"),
        ("${A}}", "x}"),
    ],
)
def test_dollars_without_a_name_in_braces_stay(written: str, meant: str) -> None:
    """Passwords and templates are full of dollars."""
    assert resolved({"x": written}, A="x").settings["x"] == meant


def test_a_value_from_the_environment_is_not_read_again() -> None:
    """A password that looks like a placeholder is still a password."""
    assert resolved({"x": "${A}"}, A="${B}", B="b").settings["x"] == "${B}"


def test_a_variable_that_is_set_to_nothing_is_set() -> None:
    """Some accounts have no password; only a missing variable holds the tenant."""
    result = resolved({"x": "${A}"}, A="")
    assert dict(result.settings) == {"x": ""}
    assert result.secrets == ()


def test_a_missing_variable_names_file_line_setting_and_variable(folder: FleetFolder) -> None:
    """The person who mends it needs exactly these four, and no secret."""
    fleet = folder.load(
        folder.head() + "  a:\n    tenants:\n      acme:\n        source:\n"
        "          password: hunter2\n          urls:\n          - x\n          - ${DB_URL}\n"
    )
    with pytest.raises(TenantSettingMissing) as caught:
        resolve_settings(fleet.path, fleet.shards["a"].tenants["acme"], {"DB_UR": "x"})
    assert caught.value.facts == {
        "path": folder.file,
        "line": 11,
        "tenant": "acme",
        "setting": "source.urls.1",
        "variable": "DB_URL",
    }
    assert str(caught.value).startswith(f"{folder.file}:11: ")
    assert "hunter2" not in str(caught.value)


def test_a_setting_beside_the_tenants_name_has_its_line(folder: FleetFolder) -> None:
    """Lines equal to the tenant's are not kept, a fleet has too many of them."""
    fleet = folder.load(folder.head() + "  a: {tenants: {acme: {url: '${DB_URL}'}}}\n")
    with pytest.raises(TenantSettingMissing, match=r"fleet\.yaml:4: setting 'url'"):
        resolve_settings(fleet.path, fleet.shards["a"].tenants["acme"], {})


@pytest.mark.parametrize(
    ("settings", "secrets"),
    [
        ({"x": "plain", "port": 5}, set()),
        ({"x": "${A}"}, {"from env"}),
        ({"x": "v=${A};"}, {"from env", "v=from env;"}),
        ({"x": ["${A}", {"y": "z"}]}, {"from env"}),
        ({"url": "postgresql://user:p4ss@host/db"}, {"p4ss"}),
        ({"url": "postgresql://user:p%40ss@host/db"}, {"p%40ss", "p@ss"}),
        ({"url": "db://user:a/b@host/db"}, {"a/b"}),
        ({"url": "db://user:a@b@host/db"}, {"a", "a@b"}),
        ({"url": "db://host/db?api_key=k3y&x=1"}, {"k3y"}),
        ({"url": "https://host:8080/a@b"}, {"8080/a"}),
        ({"url": "https://host/path"}, set()),
        ({"password": "p"}, {"p"}),
        ({"DB_PASSWORD": "p"}, {"p"}),
        ({"clientSecret": "p", "apiKey": "k", "access-token": "t"}, {"p", "k", "t"}),
        ({"credentials": {"user": "u", "more": ["m"]}}, {"u", "m"}),
        ({"token": 5, "key": None, "secret": True, "password": ""}, {"5"}),
    ],
)
def test_secrets_are_what_came_from_outside_or_is_named_like_one(
    settings: dict[str, Any], secrets: set[str]
) -> None:
    """Whatever is in here is kept out of logs, metadata, journal and errors."""
    assert set(resolved(settings, A="from env").secrets) == secrets


def test_printing_resolved_settings_shows_no_value() -> None:
    """A repr ends up in a log, a traceback or a debugger's screenshot."""
    result = resolved({"source": "hunter2", "token": "hunter2"})
    assert "hunter2" not in f"{result!r} {result} {result.settings!r}"


@pytest.mark.parametrize(
    "text", ["${", "${}", "${A-B}", "${1A}", "${A", "a ${A} ${B C}", "$$$${", "${ä}"]
)
def test_a_placeholder_without_a_name_is_malformed(text: str) -> None:
    """Left alone it would reach the database as a literal."""
    assert has_malformed_placeholder(text) == (text != "$$$${")


@pytest.mark.parametrize("text", ["", "$", "$A", "${A}", "$${", "$${A-B}", "${_a1}"])
def test_other_text_is_well_formed(text: str) -> None:
    """Only an unescaped ``${`` asks for a name."""
    assert not has_malformed_placeholder(text)


@given(text=st.text(alphabet="${}AB_ -", max_size=12))
def test_well_formed_text_resolves_and_malformed_text_is_known_before(text: str) -> None:
    """What load_fleet lets pass cannot fail at run time with the variables set."""
    if not has_malformed_placeholder(text):
        names = {"".join(name) for n in (1, 2, 3) for name in _words("AB_", n)}
        try:
            resolved({"x": text}, **dict.fromkeys(names, "v"))
        except TenantSettingMissing as error:
            assert len(error.facts["variable"]) > 3  # noqa: PT017 - only a longer name may fail


def _words(alphabet: str, length: int) -> list[str]:
    if not length:
        return [""]
    return [head + tail for head in alphabet for tail in _words(alphabet, length - 1)]


def test_redact_replaces_the_longest_first() -> None:
    """A short secret inside a long one must not leave the rest of it."""
    assert redact("x abcdef abc y", ("abc", "abcdef")) == "x *** *** y"


def test_redact_leaves_no_piece_of_secrets_that_overlap() -> None:
    """Replacing one after the other would keep the tail of the second."""
    assert redact("xabcdy", ("abc", "bcd")) == "x***y"


def test_redact_without_secrets_changes_nothing() -> None:
    """Most tenants have none."""
    assert redact("text", ()) == redact("text", ("",)) == "text"


@pytest.mark.parametrize(
    "secret",
    [
        "hunter2",
        "a b/c?d&e=f",
        "quo'te",
        'quo"te',
        "both'\"",
        "line\nbreak\ttab",
        "ü€😀",
        "back\\slash",
        "\udc80x",
    ],
)
@pytest.mark.parametrize(
    "shown",
    [
        lambda s: f"<{s}>",
        lambda s: repr({"x": [s]}),
        lambda s: repr(s + "'"),
        lambda s: json.dumps({"x": s}),
        lambda s: json.dumps({"x": s}, ensure_ascii=False),
        lambda s: f"db://u:{quote(s, safe='', errors='surrogatepass')}@h",
        lambda s: f"http://h/{quote(s, errors='surrogatepass')}",
        lambda s: f"http://h/?x={quote_plus(s, errors='surrogatepass')}",
    ],
    ids=["plain", "repr", "repr with quote", "json", "json unicode", "url", "path", "query"],
)
def test_redact_knows_how_errors_write_a_secret(secret: str, shown: Any) -> None:
    """Drivers print their arguments as repr, clients as JSON, and URLs are quoted."""
    text = shown(secret)
    assert "***" in redact(text, (secret,))
    assert len(redact(text, (secret,))) <= len(text.replace(secret, "")) + 3


@given(
    text=st.text(alphabet="abc*\\'\"\n", max_size=30),
    secrets=st.lists(st.text(alphabet="abc\\'\"\n", min_size=1, max_size=4), max_size=4),
)
def test_no_secret_is_left_after_redact(text: str, secrets: list[str]) -> None:
    """Whatever the overlap, the output holds none of them."""
    shown = redact(text, tuple(secrets))
    assert not any(secret in shown for secret in secrets)


def test_settings_can_be_sent_to_another_process() -> None:
    """Steps that run isolated get theirs by pickle."""
    result = resolved({"x": {"y": "${A}"}}, A="v")
    copy = pickle.loads(pickle.dumps(result))
    assert dict(copy.settings) == {"x": {"y": "v"}}
    assert copy.secrets == result.secrets
