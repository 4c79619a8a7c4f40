"""Which names fleets, shards, steps and tenants may have."""

import pytest
from dagster import DagsterInstance, DynamicPartitionsDefinition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenant_pipelines.fleet.names import is_identifier, tenant_name_problem


@pytest.mark.parametrize("name", ["a", "A", "a1", "shard_1", "a_b_c", "x" * 100, "A_1_b2"])
def test_identifiers_are_words_joined_by_single_underscores(name: str) -> None:
    """They have to survive being joined by Dagster."""
    assert is_identifier(name)


@pytest.mark.parametrize(
    "name",
    ["", "_a", "a_", "a__b", "1a", "a-b", "a b", "a.b", "a/b", "ä", "a\n", "x" * 101, "\u0430"],
)
def test_anything_else_is_no_identifier(name: str) -> None:
    """``a__b`` would be read as two names, and a Cyrillic letter as a Latin one."""
    assert not is_identifier(name)


@given(
    parts=st.lists(
        st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,6}", fullmatch=True), min_size=2, max_size=3
    )
)
def test_joined_identifiers_can_be_taken_apart(parts: list[str]) -> None:
    """Two shards must never share an op's name."""
    if all(is_identifier(part) for part in parts):
        assert "__".join(parts).split("__") == parts


@pytest.mark.parametrize(
    "name", ["acme", " acme ", "a,b", "a..b", "a/b", "日本", "x" * 255, "[a]", "😀"]
)
def test_tenant_names_are_free_text(name: str) -> None:
    """Customers choose their names."""
    assert tenant_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "empty"),
        ("...", "ranges"),
        ("a...b", "ranges"),
        ("a\tb", "control"),
        ("\0", "control"),
        ("\x85", "control"),
        ("\x9f", "control"),
        ("a\u2028b", "separator"),
        ("\u2029", "separator"),
        ("\ud800", "surrogate"),
        ("x" * 256, "256 bytes"),
        ("é" * 128, "256 bytes"),
    ],
)
def test_what_dagster_cannot_carry_is_no_tenant_name(name: str, problem: str) -> None:
    """Better refused here than by Dagster in the middle of a run."""
    assert problem in str(tenant_name_problem(name))


@given(name=st.text(alphabet=st.characters(exclude_categories=()), max_size=40))
@settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_dagster_takes_every_name_that_is_accepted(name: str) -> None:
    """The rule is ours, the limits are Dagster's: they have to agree."""
    if tenant_name_problem(name) is None:
        partitions = DynamicPartitionsDefinition(name="fleet/shard")
        with DagsterInstance.ephemeral() as instance:
            instance.add_dynamic_partitions("fleet/shard", [name])
            assert partitions.get_partition_keys(dynamic_partitions_store=instance) == [name]
