"""Every error of the package: it survives pickling and says what to do."""

import inspect
import pickle
import re
import typing
from pathlib import Path
from typing import Any

import pytest

from tenant_pipelines import errors
from tenant_pipelines.errors import TenantPipelinesError, UnknownName, nearest

SAMPLES: dict[Any, Any] = {
    Path: Path("/srv/fleet.yaml"),
    str: "some text",
    int: 7,
    float: 1.5,
    bool: True,
    list[str]: ["one", "two"],
    int | None: 7,
    str | None: "some text",
    float | None: 1.5,
}


def all_errors() -> list[type[TenantPipelinesError]]:
    """Return every class below the root; all of them stand in one module."""
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value)
        and issubclass(value, TenantPipelinesError)
        and value is not TenantPipelinesError
    ]


def an_instance(cls: type[TenantPipelinesError]) -> TenantPipelinesError:
    """Build one from the constructor's annotations alone."""
    hints = typing.get_type_hints(cls.__init__)
    hints.pop("return", None)
    return cls(**{name: SAMPLES[hint] for name, hint in hints.items()})


@pytest.mark.parametrize("cls", all_errors())
class TestEveryError:
    """What holds for all of them."""

    def test_it_survives_pickling(self, cls: type[TenantPipelinesError]) -> None:
        """Errors cross process borders: pools, subprocesses, Dagster's executors."""
        error = an_instance(cls)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            copy = pickle.loads(pickle.dumps(error, protocol))
            assert type(copy) is cls
            assert str(copy) == str(error)
            assert copy.facts == error.facts
            assert {name: getattr(copy, name) for name in error.facts} == error.facts

    def test_its_facts_are_attributes(self, cls: type[TenantPipelinesError]) -> None:
        """Code reads facts; only people read messages."""
        error = an_instance(cls)
        parameters = set(inspect.signature(cls).parameters)
        assert set(error.facts) == parameters
        assert all(getattr(error, name) is value for name, value in error.facts.items())

    def test_it_takes_keywords_only(self, cls: type[TenantPipelinesError]) -> None:
        """Two texts in the wrong order would read as a wrong error."""
        kinds = {parameter.kind for parameter in inspect.signature(cls).parameters.values()}
        assert kinds <= {inspect.Parameter.KEYWORD_ONLY}

    def test_its_message_ends_with_what_to_do(self, cls: type[TenantPipelinesError]) -> None:
        """Found and wanted alone leave the reader alone."""
        message = str(an_instance(cls))
        last = re.split(r"[.;] ?", message.rstrip("."))[-1]
        verbs = "set|put|restore|change|run|delete|use|some text"
        assert re.search(rf"\b({verbs})\b|Known:", last, re.IGNORECASE), message

    def test_it_is_documented_and_says_whether_to_retry(
        self, cls: type[TenantPipelinesError]
    ) -> None:
        """A caller decides by the class."""
        assert cls.__doc__
        assert isinstance(cls.is_retryable, bool)
        assert issubclass(cls, Exception)


def test_all_errors_are_found() -> None:
    """An empty list would pass every test above."""
    assert {errors.InvalidFleetFile, errors.TenantSettingMissing, UnknownName} <= set(all_errors())


def test_the_nearest_name_is_offered_and_nothing_far_off() -> None:
    """A wild guess is worse than none."""
    assert nearest("shard1", ["shard_1", "acme"]) == "did you mean 'shard_1'? "
    assert nearest("zzz", ["shard_1", "acme"]) == ""


def test_an_unknown_name_lists_some_of_the_known_ones() -> None:
    """A hundred thousand tenants do not fit a terminal."""
    known = [f"tenant-{i}" for i in range(1000)]
    message = str(UnknownName(kind="tenant", name="x", known=known, place="fleet.yaml"))
    assert "(992 more)" in message
    assert len(message) < 300
    assert "Known: none" in str(UnknownName(kind="tenant", name="x", known=[], place="f"))
