"""What a fleet file may not say: each refusal names file and line, and nothing was written.

`FleetFolder.refused` checks the place, the absence of tracebacks and the untouched folder.
"""

import os
from pathlib import Path

import pytest

from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.yaml_nodes import MAX_BYTES
from tenant_pipelines_tests.fleet.fleet_files import FleetFolder, quoted

SHARD = "  a: {tenants: [acme]}\n"


def case(name: str, text: str, line: int, *said: str) -> object:
    """Return one parameter: a fleet file, the line at fault, and what the error has to say."""
    return pytest.param(text, line, said, id=name)


# HEAD stands for lines 1 to 3: name, pipeline, shards
# fmt: off
REFUSED = [
    case("unknown key", "HEAD" + SHARD + "colour: red\n", 5, "unknown key 'colour'"),
    case("mistyped key", "proceses: 3\nHEAD" + SHARD, 1, "Did you mean 'processes'?"),
    case("unknown key in defaults", "defaults: {max_concurent: 1}\nHEAD" + SHARD, 1,
         "Did you mean 'max_concurrent'?"),
    case("unknown key in a shard", "HEAD  a:\n    tennants: [x]\n    tenants: [b]\n", 5,
         "Did you mean 'tenants'?"),
    case("pydantic's own word as a key", "'[key]': 1\nHEAD" + SHARD, 1, "unknown key '[key]'"),
    case("and in a shard", "HEAD  a: {'[key]': 1, tenants: [b]}\n", 4, "unknown key '[key]'"),
    case("and as a shard", "HEAD  '[key]': {tenants: [b]}\n", 4, "the shard name '[key]'"),
    case("and as nothing", "HEAD  '[key]':\n", 4, "'[key]'"),
    case("first of several", "HEAD" + SHARD + "colour: red\nprocesses: 0\n", 5, "colour"),
    case("no name", "pipeline: a:b\nshards:\n" + SHARD, 1, "no 'name'", "Write name"),
    case("no pipeline", "name: a\nshards:\n" + SHARD, 1, "no 'pipeline'"),
    case("no shards key", "# nothing\nname: a\npipeline: a:b\n", 2, "no 'shards'"),
    case("no shards", "name: a\npipeline: a:b\nshards: {}\n", 3, "at least one shard"),
    case("null shards", "name: a\npipeline: a:b\nshards:\n", 3, "at least one shard"),
    case("shards as a list", "HEAD  - a\n", 3, "a list as 'shards'"),
    case("shard without a mapping", "HEAD  a: [acme]\n", 4, "a list as 'a'"),
    case("shard without tenants", "HEAD  a:\n    max_concurrent: 1\n", 4, "no 'tenants' in 'a'"),
    case("null tenants", "HEAD  a:\n    tenants:\n", 5, "no tenants"),
    case("empty tenants", "HEAD  a: {tenants: []}\n", 4, "no tenants"),
    case("empty tenant mapping", "HEAD  a: {tenants: {}}\n", 4, "no tenants"),
    case("tenants as text", "HEAD  a: {tenants: acme}\n", 4, "'acme'", "a list"),
    case("nested tenant", "HEAD  a: {tenants: [acme: {x: 1}]}\n", 4, "make a mapping"),
    case("settings as a list", "HEAD  a:\n    tenants:\n      acme: [1]\n", 6, "'acme'"),
    case("settings as text", "HEAD  a: {tenants: {acme: x}}\n", 4, "settings"),
    case("duplicate top key", "name: a\nHEAD" + SHARD, 2, "'name', which line 1 has"),
    case("duplicate shard", "HEAD" + SHARD + SHARD, 5, "'a', which line 4 has"),
    case("duplicate tenant key", "HEAD  a:\n    tenants:\n      b: {}\n      b: {}\n", 7,
         "which line 6 has"),
    case("duplicate setting", "HEAD  a:\n    tenants:\n      b: {x: 1, x: 2}\n", 6, "'x'"),
    case("duplicate tenant", "HEAD  a:\n    tenants:\n      - b\n      - b\n", 7, "'b' twice",
         "first on line 6"),
    case("tenant in two shards", "HEAD" + SHARD + "  b: {tenants: {acme: {}}}\n", 5,
         "in the shards 'a' and 'b'", "first on line 4"),
    case("max_concurrent 0", "HEAD  a: {max_concurrent: 0, tenants: [b]}\n", 4,
         "0, which YAML reads as a number", "from 1 to"),
    case("runs_at_once 0", "HEAD" + SHARD + "defaults: {runs_at_once: 0}\n", 5, "from 1 to"),
    case("huge pool", "HEAD" + SHARD + "defaults: {runs_at_once: 1001}\n", 5, "to 1000"),
    case("negative processes", "HEAD" + SHARD + "processes: -1\n", 5, "from 1 to"),
    case("boolean processes", "HEAD" + SHARD + "processes: true\n", 5, "true or false"),
    case("boolean cap", "HEAD  a:\n    max_concurrent: yes\n    tenants: [b]\n", 5, "yes"),
    case("text for a number", "HEAD" + SHARD + "processes: '4'\n", 5, "'4' as 'processes'"),
    case("float for a number", "HEAD" + SHARD + "processes: 4.0\n", 5, "4.0"),
    case("null for a number", "HEAD" + SHARD + "processes:\n", 5, "nothing as 'processes'"),
    case("octal number", "HEAD" + SHARD + "processes: 010\n", 5, "octal"),
    case("huge number", "HEAD" + SHARD + f"processes: 0x{'F' * 90}\n", 5, "from 1 to"),
    case("longer number", "HEAD" + SHARD + f"processes: {'9' * 9000}\n", 5, "from 1 to"),
    case("schedule of four fields", "HEAD" + SHARD + "schedule: '0 3 * *'\n", 5, "'0 3 * *'",
         "five cron fields"),
    case("schedule with seconds", "HEAD" + SHARD + "schedule: '0 0 3 * * *'\n", 5, "five cron"),
    case("schedule that never comes", "HEAD" + SHARD + "schedule: '0 3 31 2 *'\n", 5, "five"),
    case("schedule by a word", "HEAD" + SHARD + "schedule: '@daily'\n", 5, "0 3 * * *"),
    case("schedule as a number", "HEAD" + SHARD + "schedule: 3\n", 5, "a number"),
    case("empty schedule", "HEAD" + SHARD + "schedule: ''\n", 5, "five cron fields"),
    case("age without a unit", "HEAD" + SHARD + "stale_after: '24'\n", 5, "such as 24h"),
    case("resume as a number", "HEAD" + SHARD + "resume: 8\n", 5, "a mapping of attempts"),
    case("mistyped key in resume", "HEAD" + SHARD + "resume: {atempts: 8}\n", 5,
         "Did you mean 'attempts'?"),
    case("negative attempts", "HEAD" + SHARD + "resume: {attempts: -1}\n", 5, "from 0 to 1000"),
    case("no wait", "HEAD" + SHARD + "resume: {wait_seconds: 0}\n", 5, "from 1 to 86400"),
    case("null defaults", "HEAD" + SHARD + "defaults:\n", 5, "nothing as 'defaults'"),
    case("fleet name", "name: a__b\npipeline: a:b\nshards:\n" + SHARD, 1, "'a__b'", "__"),
    case("hyphen", "name: a-b\npipeline: a:b\nshards:\n" + SHARD, 1, "'a-b'"),
    case("long name", f"name: {'a' * 101}\npipeline: a:b\nshards:\n" + SHARD, 1, "…"),
    case("number as a name", "name: 7\npipeline: a:b\nshards:\n" + SHARD, 1, "a number"),
    case("shard name", "HEAD  a__b: {tenants: [c]}\n", 4, "the shard name 'a__b'"),
    case("number as a shard", "HEAD  1: {tenants: [c]}\n", 4, 'Quote it: "1"'),
    case("pipeline without a colon", "name: a\npipeline: a.b\nshards:\n" + SHARD, 2,
         "module.path:attribute"),
    case("pipeline as a mapping", "name: a\npipeline: {a: b}\nshards:\n" + SHARD, 2,
         "a mapping as 'pipeline'"),
    case("file as a pipeline", "name: a\npipeline: ./a.py:b\nshards:\n" + SHARD, 2, "a.py"),
    *(
        case(f"{key} is not built", f"HEAD{SHARD}{key}: 1\n", 5, f"{key!r}, which is not built")
        for key in ("rate", "budget", "isolation", "timeout_seconds")
    ),
    case("rate in defaults", "HEAD" + SHARD + "defaults: {rate: 5/second}\n", 5, "not built"),
    case("rate in a shard", "HEAD  a: {rate: 5/second, tenants: [b]}\n", 4, "not built"),
    case("memory in a shard", "HEAD  a: {max_memory_mb: 5, tenants: [b]}\n", 4, "not built"),
    case("other journal", "HEAD" + SHARD + "journal: postgresql://u:hunter2@h/d\n", 5,
         "not built yet"),
    case("journal as a list", "HEAD" + SHARD + "journal: [sqlite]\n", 5, "journal"),
    case("artifacts at a URL", "HEAD" + SHARD + "artifacts: s3://k:hunter2@b\n", 5,
         "not built yet"),
    case("artifacts per shard", "HEAD" + SHARD + 'artifacts: "{shard}/a"\n', 5, "{shard} is"),
    case("empty artifacts", "HEAD" + SHARD + 'artifacts: ""\n', 5, "a folder"),
    case("open brace", "HEAD" + SHARD + 'artifacts: "{state/a"\n', 5, "placeholder"),
    case("warehouse elsewhere", "HEAD" + SHARD + "warehouse: postgresql://u:hunter2@h/d\n", 5,
         "'postgresql', which is not built yet"),
    case("other SQLite driver", "HEAD" + SHARD + "warehouse: sqlite+aiosqlite:///x\n", 5,
         "not built yet"),
    case("warehouse per shard", "HEAD" + SHARD + "warehouse: sqlite:///{shard}/w.db\n", 5,
         "{shard} is not built yet"),
    case("variable in warehouse", "HEAD" + SHARD + "warehouse: ${HUNTER}\n", 5, "settings only" ),
    case("warehouse that is no URL", "HEAD" + SHARD + "warehouse: hunter2\n", 5,
         "no SQLAlchemy URL"),
    case("warehouse with a bad port", "HEAD" + SHARD + "warehouse: sqlite://u:hunter2@h:x/d\n",
         5, "no SQLAlchemy URL"),
    case("two slashes", "HEAD" + SHARD + "warehouse: sqlite://hunter2/w.db\n", 5,
         "three slashes" ),
    case("password for a file", "HEAD" + SHARD + "warehouse: sqlite://u:hunter2@/w.db\n", 5,
         "with a host"),
    case("memory", "HEAD" + SHARD + "warehouse: sqlite://\n", 5, "processes cannot share"),
    case("named memory", "HEAD" + SHARD + "warehouse: \"sqlite:///:memory:\"\n", 5, "share"),
    case("SQLite URI", "HEAD" + SHARD + "warehouse: sqlite:///file:x?uri=true\n", 5, "share"),
    case("warehouse as a list", "HEAD" + SHARD + "warehouse: [hunter2]\n", 5, "'warehouse'"),
    case("setting without a name", "HEAD  a: {tenants: {b: {x: '${A-hunter2}'}}}\n", 4, "'x'",
         "$${"),
    case("setting that is not closed", "HEAD  a:\n    tenants:\n      b:\n        x: '${A'\n", 7,
         "'x'"),
    case("deep setting", "HEAD  a:\n    tenants:\n      b:\n        x:\n          - y: ${}\n", 8,
         "'x.0.y'"),
    case("variable in a setting's name", "HEAD  a: {tenants: {b: {'${A}': 1}}}\n", 4, "values"),
    case("octal setting", "HEAD  a:\n    tenants:\n      b:\n        pin: 0042\n", 7, "octal",
         "Quote it"),
    case("base 60 setting", "HEAD  a: {tenants: {b: {at: 12:30}}}\n", 4, "base 60"),
    case("Norway", "HEAD  a: {tenants: {b: {country: NO}}}\n", 4, "'country'", "Quote it"),
    case("impossible date", "HEAD  a: {tenants: {b: {since: 2024-13-45}}}\n", 4, "date"),
    case("setting without a text key", "HEAD  a: {tenants: {b: {1: x}}}\n", 4, "the key 1"),
    case("list as the root", "# a\n- a\n", 2, "a list"),
    case("text as the root", "hello\n", 1, "'hello'"),
    case("null as the root", "null\n", 1, "null"),
    case("empty file", "", 1, "an empty file"),
    case("only a comment", "# later\n\n", 1, "an empty file"),
    case("two documents", "HEAD" + SHARD + "---\nname: b\n", 5, "a second YAML document"),
    case("tab", "HEAD  a:\n\ttenants: [b]\n", 5, "spaces, not tabs"),
    case("not closed", "HEAD  a: {tenants: [b}\n", 4, "broken YAML"),
    case("indentation", "name: a\n pipeline: b\n", 2, "broken YAML"),
    case("anchor", "name: a\ndefaults: &d {max_concurrent: 1}\n", 2, "an anchor"),
    case("alias", "name: a\npipeline: *d\n", 2, "an alias"),
    case("anchored list", "HEAD  a: {tenants: &t [b]}\n", 4, "an anchor"),
    case("tag", "HEAD  a: {tenants: [!!str 1]}\n", 4, "a tag"),
    case("Python tag", "name: !!python/object/apply:os.system ['true']\n", 1, "a tag"),
    case("merge key", "HEAD  <<: {a: b}\n", 4, "merge"),
    case("list as a key", "? [a]\n: b\n", 1, "a list as a key"),
    case("twenty levels", "name: a\npipeline: " + "[" * 20 + "]" * 20, 2, "20 levels"),
    case("zero byte", "name: a\npipe\0line: b\n", 2, "U+0000"),
    case("next line", 'name: "a\x85b"\n', 1, "U+0085"),
    case("line separator", "name: a\n# \u2028\n", 2, "U+2028"),
    case("escape character", "name: a\n\n# \x1b[31m\n", 3, "U+001B"),
]
# fmt: on


@pytest.mark.parametrize(("text", "line", "said"), REFUSED)
def test_a_wrong_file_is_refused_at_its_line(
    folder: FleetFolder, text: str, line: int, said: tuple[str, ...]
) -> None:
    """Whoever reads the error at night has only the error."""
    message = folder.refused(text.replace("HEAD", folder.head()), line=line)
    for part in said:
        assert part in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("123", "a number"),
        ("1_000", "a number"),
        ("1.5", "a number"),
        ("1e3", None),
        ("007", "an octal number"),
        ("0x1F", "a number"),
        ("12:30", "a number in base 60"),
        (".inf", "a number"),
        ("NO", "true or false"),
        ("on", "true or false"),
        ("true", "true or false"),
        ("null", "null"),
        ("~", "null"),
        ("2024-01-01", "a date"),
        ("2024-01-01 10:00:00", "a date"),
        ("2024-99-99", "a date that does not exist"),
    ],
)
def test_a_tenant_name_that_yaml_reads_as_something_else_has_to_be_quoted(
    folder: FleetFolder, written: str, kind: str | None
) -> None:
    """Customer 007 must not become customer 7, nor Norway become false."""
    as_list = folder.head() + f"  a:\n    tenants:\n      - x\n      - {written}\n"
    as_key = folder.head() + f"  a:\n    tenants:\n      x: {{}}\n      {written}: {{}}\n"
    if kind is None:
        assert list(folder.load(as_list).shards["a"].tenants) == ["x", written]
        return
    for text in (as_list, as_key):
        message = folder.refused(text, line=7)
        assert f"{written}, which YAML reads as {kind}" in message
        assert f'Quote it: "{written}"' in message


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "an empty name"),
        ("a...b", "'...'"),
        ("a\nb", "a control character"),
        ("a\x7fb", "a control character"),
        ("é" * 128, "256 bytes"),
    ],
)
def test_a_tenant_name_that_dagster_cannot_carry_is_refused(
    folder: FleetFolder, name: str, problem: str
) -> None:
    """Dagster would refuse it later, when half of the fleet has run."""
    written = quoted(name).replace("\x7f", "\\x7f")
    as_list = folder.head() + f"  a:\n    tenants:\n      - x\n      - {written}\n"
    as_key = folder.head() + f"  a:\n    tenants:\n      x: {{}}\n      ? {written}\n      : {{}}\n"
    assert problem in folder.refused(as_list, line=7)
    assert problem in folder.refused(as_key, line=7)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{a: ", "!!x [", "&a [", "[*a, "])
def test_five_megabytes_of_nesting_are_refused_at_once(folder: FleetFolder, opening: str) -> None:
    """A recursive reader would end the process without an error."""
    message = folder.refused(
        "name: a\nshards: \n  " + opening * (5_000_000 // len(opening)), line=3
    )
    assert any(word in message for word in ("levels", "nesting", "plain YAML", "as a key"))


def test_a_file_of_many_lines_of_nesting_is_refused(folder: FleetFolder) -> None:
    """Block style nests as deep as flow style."""
    text = "".join(" " * depth + "a:\n" for depth in range(1000))
    assert "20 levels" in folder.refused(text, line=20)


def test_bytes_that_are_not_utf8_are_refused_at_their_line(folder: FleetFolder) -> None:
    """Latin-1 and UTF-16 are what Windows saves when nobody looks."""
    assert "UTF-8" in folder.refused("name: a\n# caf\xe9\n".encode("latin-1"), line=2)
    assert "UTF-8" in folder.refused("name: a\n".encode("utf-16"), line=1)
    assert "UTF-8" in folder.refused(bytes(range(256)) * 100, line=2)


def test_a_missing_file_is_refused(folder: FleetFolder) -> None:
    """The first thing anybody mistypes is the path."""
    assert "no such file" in folder.refused_file(folder.path / "fleets.yaml", line=None)
    assert "cannot be read" in folder.refused_file(folder.write("x") / "fleet.yaml", line=None)


def test_a_directory_is_refused(folder: FleetFolder) -> None:
    """``--fleet .`` is tempting."""
    assert "a directory" in folder.refused_file(folder.path, line=None)


def test_what_is_no_regular_file_is_refused_without_waiting(folder: FleetFolder) -> None:
    """Opening a pipe waits for a writer that never comes."""
    os.mkfifo(folder.path / "pipe")
    with pytest.raises(ValueError, match="no regular file"):
        load_fleet(folder.path / "pipe")


def test_a_file_in_a_loop_of_links_is_refused(folder: FleetFolder) -> None:
    """The system's reason belongs into the error."""
    (folder.path / "loop.yaml").symlink_to(folder.path / "loop.yaml")
    with pytest.raises(ValueError, match=r"loop\.yaml: found a file that cannot be read"):
        load_fleet(folder.path / "loop.yaml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(folder: FleetFolder) -> None:
    """The user of the daemon is often not the user who wrote the file."""
    folder.write("name: a\n").chmod(0)
    assert "Permission denied" in folder.refused_file(folder.file, line=None)


def test_a_file_above_32_megabytes_is_refused(folder: FleetFolder) -> None:
    """Whoever passes a data dump gets an answer at once."""
    with folder.file.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert "32 MB" in folder.refused_file(folder.file, line=None)


@pytest.mark.parametrize("path", ["a\0b", Path("a\0b"), "\ud800"])
def test_a_path_that_no_file_can_have_is_refused(path: str | Path) -> None:
    """Paths come from variables and forms, too."""
    with pytest.raises(ValueError, match=r"a path that no file can have|no such file"):
        load_fleet(path)
