"""Canonical JSON: one text per value, and the same value back. Pure."""

import json
import math
from typing import Any

from tenant_pipelines.errors import TenantPipelinesError

_MOST_LEVELS = 100
_MOST_SHOWN = 10  # keys of a place in an error
# made once: json.dumps would make an encoder on each call
_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class UnstorableValue(TenantPipelinesError, TypeError):
    """A value that JSON cannot hold, or would change."""

    def __init__(self, *, found: str, wanted: str) -> None:
        super().__init__(f"found {found}; wanted {wanted}", found=found, wanted=wanted)


def canonical_json(value: Any) -> bytes:
    """Return the canonical JSON of a value: keys sorted, no spaces, UTF-8.

    Args:
        value: dict with string keys, list, str, int, finite float, bool or None, nested at most
            100 deep; exactly these types, so that what is read back equals what was written.

    Raises:
        UnstorableValue: it contains anything else; names where.
    """
    _check(value, None, 0)
    try:
        return _encoder.encode(value).encode()
    except ValueError:
        _find_unencodable(value, None)
        raise


# a chain of keys from the inside out, so that naming the place costs nothing while all is well
_Place = tuple["_Place", str | int] | None


def _check(value: Any, place: _Place, level: int) -> None:
    kind = type(value)
    if kind in {str, int, bool, type(None)}:
        return
    if level > _MOST_LEVELS:
        raise UnstorableValue(
            found=f"data nested more than {_MOST_LEVELS} deep{_shown(place)}",
            wanted="flatter data",
        )
    if kind is float:
        if not math.isfinite(value):
            raise UnstorableValue(
                found=f"{value!r}{_shown(place)}", wanted="a finite number, or None for no value"
            )
    elif kind is list:
        for index, entry in enumerate(value):
            _check(entry, (place, index), level + 1)
    elif kind is dict:
        for name, entry in value.items():
            if type(name) is not str:
                raise UnstorableValue(
                    found=f"the key {name!r} ({type(name).__name__}){_shown(place)}",
                    wanted="keys that are strings",
                )
            _check(entry, (place, name), level + 1)
    else:
        module, _, _ = kind.__module__.partition(".")
        name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
        raise UnstorableValue(
            found=f"a value of type {name}{_shown(place)}",
            wanted=_WANTED.get("tuple" if kind is tuple else module, _WANTED[""]),
        )


def _find_unencodable(value: Any, place: _Place) -> None:
    """Refuse the first value that the encoder stumbles over."""
    if isinstance(value, (list, dict)):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for name, entry in entries:
            if isinstance(name, str):
                _find_unencodable(name, place)
            _find_unencodable(entry, (place, name))
        return
    try:
        _encoder.encode(value).encode()
    except UnicodeEncodeError:
        raise UnstorableValue(
            found=f"a string with half of a surrogate pair{_shown(place)}", wanted="Unicode text"
        ) from None
    except ValueError as error:  # int of more than sys.get_int_max_str_digits digits
        raise UnstorableValue(
            found=f"a number{_shown(place)} ({error})", wanted="a shorter number"
        ) from None


def _shown(place: _Place) -> str:
    keys: list[str] = []
    while place is not None:
        place, key = place
        keys.insert(0, f"[{key!r}]")
    if len(keys) > _MOST_SHOWN:
        keys[_MOST_SHOWN:] = ["…"]
    return f" at {''.join(keys)}" if keys else ""


_WANTED = {
    "": "a DataFrame, None, or JSON data: dict, list, str, int, float, bool",
    "numpy": "Python's own numbers and lists: call .item() on a scalar, .tolist() on an array",
    "tuple": "a list (JSON would turn the tuple into one)",
    "pandas": "a DataFrame (Series.to_frame()), None, or JSON data (str() of a time)",
}
