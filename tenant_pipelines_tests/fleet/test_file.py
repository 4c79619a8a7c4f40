"""Reading a fleet file: what is understood, and where things are kept."""

import subprocess
import sys
import time
import unicodedata
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._utils.schedules import is_valid_cron_schedule
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import make_url

from tenant_pipelines.errors import InvalidFleetFile, UnknownName
from tenant_pipelines.fleet import file as fleet_file
from tenant_pipelines.fleet import places
from tenant_pipelines.fleet.file import find_fleet, load_fleet, sample_fleets
from tenant_pipelines.fleet.model import Fleet, Limits, Resume
from tenant_pipelines_tests.fleet.fleet_files import FleetFolder, quoted

INSTALLED = "tenant_pipelines_tests.fleet.a_pipeline:pipeline"
WHOLE = """\
name: flights
pipeline: MODULE:pipeline
processes: 3
defaults: {max_concurrent: 5, runs_at_once: 6}
warehouse: sqlite:///{state}/warehouse.db
journal: sqlite
artifacts: "{state}/outputs"
shards:
  shard_1:
    tenants: [acme, globex]
  shard_2:
    max_concurrent: 4
    tenants:
      initech: {source: "${INITECH_DB_URL}"}
      umbrella: {}
      hooli:
        source:
          tables: [a, b]
        since: 7
      wonka:
"""


def test_a_whole_file_becomes_the_fleet_it_describes(folder: FleetFolder) -> None:
    """Every key of the contract has to arrive, with limits inherited one by one."""
    fleet = folder.load(WHOLE)
    state = folder.path / ".tenant_pipelines" / "flights"
    assert (fleet.name, fleet.path, fleet.processes) == ("flights", folder.file, 3)
    assert fleet.pipeline.names == ("extract",)
    assert fleet.state == state
    assert fleet.warehouse == f"sqlite:///{state}/warehouse.db"
    assert fleet.artifacts == f"{state}/outputs"
    assert {name: list(shard.tenants) for name, shard in fleet.shards.items()} == {
        "shard_1": ["acme", "globex"],
        "shard_2": ["initech", "umbrella", "hooli", "wonka"],
    }
    assert fleet.shards["shard_1"].limits == Limits(max_concurrent=5, runs_at_once=6)
    assert fleet.shards["shard_2"].limits == Limits(max_concurrent=4, runs_at_once=6)


def test_settings_stay_as_written_and_keep_their_lines(folder: FleetFolder) -> None:
    """The environment is read at run time; the line is what a missing variable is reported with."""
    tenants = folder.load(WHOLE).shards["shard_2"].tenants
    assert tenants["initech"].settings == {"source": "${INITECH_DB_URL}"}
    assert tenants["umbrella"].settings == tenants["wonka"].settings == {}
    assert tenants["hooli"].settings == {"source": {"tables": ["a", "b"]}, "since": 7}
    assert tenants["hooli"].line == 16
    assert tenants["hooli"].setting_lines == {
        "source": 17,
        "source.tables": 18,
        "source.tables.0": 18,
        "source.tables.1": 18,
        "since": 19,
    }


def test_what_is_left_out_has_the_documented_default(folder: FleetFolder) -> None:
    """Three keys are enough."""
    fleet = folder.load(folder.head() + "  shard_1: {tenants: [acme]}\n")
    assert fleet.processes == 16
    assert fleet.warehouse is None
    assert fleet.artifacts == str(fleet.state / "artifacts")
    assert fleet.shards["shard_1"].limits == Limits(max_concurrent=2, runs_at_once=4)


def test_reading_writes_nothing(folder: FleetFolder) -> None:
    """The state folder is made by the first write of a run, not by looking at a file."""
    folder.write(WHOLE)
    before = folder.everything()
    load_fleet(folder.file, environ={})
    assert folder.everything() == before


def test_printing_a_fleet_shows_no_settings(folder: FleetFolder) -> None:
    """Settings may hold literal passwords, and a repr ends up in logs."""
    text = folder.head() + "  shard_1: {tenants: {acme: {password: hunter2}}}\n"
    assert "hunter2" not in repr(folder.load(text))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("'123'", "123"),
        ('"NO"', "NO"),
        ("acme corp", "acme corp"),
        ("a/b\\c", "a/b\\c"),
        ("日本", "日本"),
        ('"${NOT_READ}"', "${NOT_READ}"),
        ("v1.2.3", "v1.2.3"),
        ("2024-01-01-acme", "2024-01-01-acme"),
    ],
)
def test_a_tenant_name_is_free_text(folder: FleetFolder, written: str, meant: str) -> None:
    """Customers are called what they are called."""
    as_list = folder.load(folder.head() + f"  shard_1:\n    tenants:\n      - {written}\n")
    as_mapping = folder.load(folder.head() + f"  shard_1:\n    tenants:\n      {written}: {{}}\n")
    assert list(as_list.shards["shard_1"].tenants) == [meant]
    assert list(as_mapping.shards["shard_1"].tenants) == [meant]


def test_names_that_only_look_alike_are_different_tenants(folder: FleetFolder) -> None:
    """Merging them would show one customer's data to another."""
    names = [
        "Acme",
        "acme",
        unicodedata.normalize("NFC", "café"),
        unicodedata.normalize("NFD", "café"),
    ]
    listed = ", ".join(quoted(name) for name in names)
    fleet = folder.load(folder.head() + f"  shard_1: {{tenants: [{listed}]}}\n")
    assert list(fleet.shards["shard_1"].tenants) == names


def test_a_byte_order_mark_and_windows_line_ends_are_read(folder: FleetFolder) -> None:
    """Editors add them unasked."""
    text = folder.head() + "  shard_1: {tenants: [acme]}\n"
    fleet = folder.load(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert list(fleet.shards) == ["shard_1"]


def test_relative_paths_count_from_the_fleet_file(
    folder: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file has to mean the same places wherever the command is started."""
    (folder.path / "elsewhere").mkdir()
    text = (
        f"warehouse: sqlite:///data/w.db\nartifacts: ../outputs\n{folder.head()}"
        "  shard_1: {tenants: [acme]}\n"
    )
    folder.write(text)
    fleets = []
    for directory, path in (
        (folder.path, "fleet.yaml"),
        (folder.path / "elsewhere", "../fleet.yaml"),
    ):
        monkeypatch.chdir(directory)
        fleets.append(load_fleet(path, environ={}))
    for fleet in fleets:
        assert fleet.path == folder.file
        assert fleet.warehouse == f"sqlite:///{folder.path}/data/w.db"
        assert fleet.artifacts == str(folder.path.parent / "outputs" / "flights")
        assert fleet.state == folder.path / ".tenant_pipelines" / "flights"


def test_a_link_to_a_fleet_file_is_the_same_fleet(folder: FleetFolder, tmp_path: Path) -> None:
    """Two states for one fleet would extract and load everything twice."""
    folder.write(folder.head() + "  shard_1: {tenants: [acme]}\n")
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "current.yaml"
    link.symlink_to(folder.file)
    assert load_fleet(link, environ={}).state == load_fleet(folder.file, environ={}).state


def test_the_state_variable_moves_the_state_of_each_fleet(
    folder: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several fleets share one state root without sharing a journal."""
    text = folder.head() + "  shard_1: {tenants: [acme]}\n"
    assert folder.load(text, TENANT_PIPELINES_STATE="/srv/a/../state").state == Path(
        "/srv/state/flights"
    )
    monkeypatch.setenv("HOME", "/home/someone")
    assert folder.load(text, TENANT_PIPELINES_STATE="~/s").state == Path("/home/someone/s/flights")
    assert folder.load(text, TENANT_PIPELINES_STATE="").state.is_relative_to(folder.path)


def test_the_real_environment_is_read_when_none_is_given(
    folder: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster's code server has nothing else to give."""
    monkeypatch.setenv("TENANT_PIPELINES_STATE", "/srv/state")
    folder.write(folder.head() + "  shard_1: {tenants: [acme]}\n")
    assert load_fleet(folder.file).state == Path("/srv/state/flights")


def test_a_relative_state_variable_is_refused(folder: FleetFolder) -> None:
    """It would make another state in every working directory."""
    text = folder.head() + "  shard_1: {tenants: [acme]}\n"
    message = folder.refused(text, line=None, TENANT_PIPELINES_STATE="state")
    assert "TENANT_PIPELINES_STATE='state'" in message


def test_a_packaged_sample_keeps_its_state_with_the_user(
    folder: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed packages are often read-only, and removed with everything in them."""
    monkeypatch.setattr(places, "SAMPLES", folder.path)
    monkeypatch.setenv("XDG_DATA_HOME", "/home/someone/data")
    fleet = folder.load(folder.head() + "  shard_1: {tenants: [acme]}\n")
    assert fleet.state == Path("/home/someone/data/tenant-pipelines/flights")


@pytest.mark.parametrize("name", ["with space", "at@sign", "percent%41", "hash#", "colon:x", "ünï"])
def test_the_warehouse_works_in_folders_with_odd_names(tmp_path: Path, name: str) -> None:
    """A URL that quietly means another file would hide a customer's data."""
    (tmp_path / name).mkdir()
    folder = FleetFolder(tmp_path / name)
    try:
        text = f"warehouse: sqlite:///{{state}}/w.db\n{folder.head()}  a: {{tenants: [acme]}}\n"
        fleet = folder.load(text)
    finally:
        if str(folder.path) in sys.path:
            sys.path.remove(str(folder.path))
    assert fleet.warehouse is not None
    assert make_url(fleet.warehouse).database == str(fleet.state / "w.db")


def test_the_folder_is_importable_only_for_a_module_that_lies_in_it(folder: FleetFolder) -> None:
    """Any other file beside the fleet file must not hide an installed module."""
    (folder.path / "yaml.py").write_text("raise RuntimeError('hid PyYAML')")
    text = f"name: x\npipeline: {INSTALLED}\nshards: {{a: {{tenants: [b]}}}}\n"
    folder.load(text)
    assert str(folder.path) not in sys.path
    folder.load(folder.head() + "  a: {tenants: [b]}\n")
    assert sys.path[0] == str(folder.path)
    folder.load(folder.head() + "  a: {tenants: [b]}\n")
    assert sys.path.count(str(folder.path)) == 1


def test_a_pipeline_may_lie_in_a_package_beside_the_fleet_file(folder: FleetFolder) -> None:
    """That is how a project of more than one module looks."""
    package = folder.path / f"{folder.module}_company"
    package.mkdir()
    (package / "steps.py").write_text((folder.path / f"{folder.module}.py").read_text())
    (package / "pipelines.py").write_text(f"from {package.name}.steps import pipeline as mine\n")
    fleet = folder.load(
        f"name: x\npipeline: {package.name}.pipelines:mine\nshards: {{a: {{tenants: [b]}}}}\n"
    )
    assert fleet.pipeline.names == ("extract",)


def test_samples_are_found_by_name_and_files_by_path(
    folder: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--fleet`` takes both."""
    (folder.path / "samples" / "story").mkdir(parents=True)
    sample = folder.path / "samples" / "story" / "fleet.yaml"
    sample.write_text("name: story")
    folder.write("name: x")
    monkeypatch.setattr(fleet_file, "SAMPLES", folder.path / "samples")
    monkeypatch.chdir(folder.path)
    (folder.path / "story").write_text("a file of the same name")
    assert sample_fleets() == {"story": sample}
    assert find_fleet("story") == sample
    assert find_fleet("./story") == folder.path / "story"
    assert find_fleet("fleet.yaml") == folder.file
    assert find_fleet(str(folder.file)) == folder.file


def test_a_fleet_that_does_not_exist_is_answered_with_those_that_do(
    folder: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped sample and a mistyped path need different help."""
    monkeypatch.setattr(fleet_file, "SAMPLES", folder.path / "samples")
    (folder.path / "samples" / "story").mkdir(parents=True)
    (folder.path / "samples" / "story" / "fleet.yaml").write_text("name: story")
    monkeypatch.chdir(folder.path)
    with pytest.raises(UnknownName, match="did you mean 'story'") as unknown:
        find_fleet("storry")
    assert unknown.value.facts["known"] == ["story"]
    with pytest.raises(InvalidFleetFile, match=r"no such file.*story"):
        find_fleet("./nothing.yaml")
    with pytest.raises(InvalidFleetFile, match=r"samples/story/fleet\.yaml"):
        find_fleet("samples/story")
    with pytest.raises(InvalidFleetFile, match="no file can have"):
        find_fleet("a\0b")


def test_every_packaged_sample_can_be_found() -> None:
    """The list comes from the package itself."""
    for name, path in sample_fleets().items():
        assert find_fleet(name) == path
        assert path.is_file()


@pytest.mark.parametrize("module", ["tenant_pipelines", "tenant_pipelines.fleet.file"])
def test_importing_the_fleet_does_not_import_dagster_or_pandas(module: str) -> None:
    """They take seconds, and a command that only reads a file must not."""
    code = f"import {module}, sys; print({{'dagster', 'pandas'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_a_hundred_thousand_tenants_load_in_seconds(folder: FleetFolder) -> None:
    """Every process of a run reads the file."""
    lines = [folder.head()]
    for shard in range(100):
        lines.append(f"  shard_{shard}:\n    tenants:\n")
        lines += [f"      tenant-{shard}-{i}: {{source: '${{A}}'}}\n" for i in range(1000)]
    text = "".join(lines)
    started = time.process_time()
    fleet = folder.load(text)
    assert sum(len(shard.tenants) for shard in fleet.shards.values()) == 100_000
    assert time.process_time() - started < 15


GOOD = f"""\
name: flights
pipeline: {INSTALLED}
warehouse: sqlite:///{{state}}/w.db
shards:
  a:
    tenants: {{acme: {{x: '${{A}}'}}}}
"""
CHANGES = st.lists(
    st.tuples(
        st.integers(0, len(GOOD)),
        st.integers(0, 12),
        st.text(alphabet="abc:{}[]-&*!|>'\"%@#?,\n\t \\$~<=0129.\x00\ufeff", max_size=6),
    ),
    min_size=1,
    max_size=4,
)
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["name", "pipeline", "shards", "defaults", "warehouse", "journal", "artifacts", "processes"]


def loads_or_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        outcome: Fleet | InvalidFleetFile = load_fleet(path, environ={})
    except InvalidFleetFile as error:
        outcome = error
    assert isinstance(outcome, Fleet) or str(path) in str(outcome)
    assert list(path.parent.iterdir()) == [path]


class TestAnyText:
    """Whatever the bytes are, the answer is a Fleet or one clear error."""

    @given(
        data=st.binary(max_size=300)
        | st.text(max_size=300).map(lambda t: t.encode(errors="replace"))
    )
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_arbitrary_bytes(self, tmp_path: Path, data: bytes) -> None:
        """Files get truncated, mixed up and zipped."""
        loads_or_is_refused(tmp_path / "fleet.yaml", data)

    @given(changes=CHANGES)
    @settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_good_file_with_damage(
        self, tmp_path: Path, changes: list[tuple[int, int, str]]
    ) -> None:
        """Typing errors are small."""
        text = GOOD
        for start, length, new in changes:
            text = text[:start] + new + text[start + length :]
        loads_or_is_refused(tmp_path / "fleet.yaml", text.encode())

    @given(data=st.dictionaries(st.sampled_from(KEYS) | st.text(), VALUES, max_size=6))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_data_under_the_known_keys(self, tmp_path: Path, data: dict[str, Any]) -> None:
        """Well-formed YAML of the wrong shape must not reach the checks behind."""
        loads_or_is_refused(
            tmp_path / "fleet.yaml",
            yaml.safe_dump(data, allow_unicode=True).encode(errors="replace"),
        )

    @given(settings_of_acme=st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_settings(self, tmp_path: Path, settings_of_acme: dict[str, Any]) -> None:
        """Settings are the one place where a user may write any shape."""
        data = {
            "name": "x",
            "pipeline": INSTALLED,
            "shards": {"a": {"tenants": {"acme": settings_of_acme}}},
        }
        loads_or_is_refused(tmp_path / "fleet.yaml", yaml.safe_dump(data).encode(errors="replace"))


def test_schedule_age_and_resume_are_read(folder: FleetFolder) -> None:
    """And what nobody wrote has the default that the README names."""
    shards = folder.head() + "  a: {tenants: [b]}\n"
    fleet = folder.load(shards)
    assert (fleet.schedule, fleet.stale_after) == (None, None)
    assert fleet.resume == Resume(attempts=8, wait_seconds=60)
    fleet = folder.load(
        shards + "schedule: '0 3 * * 1-5'\nstale_after: 36h\nresume: {attempts: 0}\n"
    )
    assert (fleet.schedule, fleet.stale_after) == ("0 3 * * 1-5", timedelta(hours=36))
    assert fleet.resume == Resume(attempts=0, wait_seconds=60)


_NUMBERS = st.one_of(
    st.just("*"), st.integers(0, 60).map(str), st.just("*/5"), st.just("1-3"), st.just("1,15"),
    st.just("L"), st.just("5#2"), st.just("MON"), st.just("JAN"), st.just("7L"), st.just("LW"),
)  # fmt: skip


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cron=st.lists(_NUMBERS, min_size=5, max_size=5).map(" ".join))
def test_a_schedule_that_a_fleet_file_may_have_is_one_for_dagster(
    folder: FleetFolder, cron: str
) -> None:
    """Else the file would be good and its definitions would not load."""
    try:
        folder.load(f"{folder.head()}  a: {{tenants: [b]}}\nschedule: '{cron}'\n")
    except InvalidFleetFile:
        return
    assert is_valid_cron_schedule(cron)
