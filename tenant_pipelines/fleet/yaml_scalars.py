"""What a scalar of YAML 1.1 means, and which ones mean something that nobody meant.

Pure: text in, value out. Text that is quoted stays text.
"""

import datetime
import re
from dataclasses import dataclass
from typing import Any

import yaml

# no number, date or constant is longer; keeps int() and YAML's own patterns away from huge text
_LONGEST_PLAIN = 100
_OCTAL = re.compile(r"[-+]?0[0-9_]")
_RESOLVER: Any = yaml.resolver.Resolver()
# first characters of what is not text
_RESOLVED = frozenset(_RESOLVER.yaml_implicit_resolvers)
_CONSTRUCTOR: Any = yaml.constructor.SafeConstructor()


@dataclass(frozen=True, slots=True)
class Misread:
    """A plain scalar that YAML 1.1 reads as something nobody means, such as ``NO`` or ``0123``."""

    reads_as: str


Value = str | int | float | bool | datetime.date | Misread | None


def scalar_value(text: str, *, is_plain: bool) -> Value:
    """Convert a scalar as YAML does, and mark what people write without meaning that.

    Args:
        text: the scalar without its quotes.
        is_plain: whether it had none.

    Returns:
        The value; Misread for yes, no, on, off, base 60, octal and impossible dates.
    """
    if not is_plain or len(text) > _LONGEST_PLAIN or text[:1] not in _RESOLVED:
        return text
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
    return _converted(tag.removeprefix("tag:yaml.org,2002:"), text)


def reads_as(value: Value) -> str:
    """Name the kind of a scalar that is not text."""
    match value:
        case Misread():
            return value.reads_as
        case bool():
            return "true or false"
        case None:
            return "null"
        case int() | float():
            return "a number"
        case datetime.date():
            return "a date"
        case str():
            return "text"


def _converted(kind: str, text: str) -> Value:
    """Return the plain scalar ``text`` as the ``kind`` that YAML 1.1 resolves it to."""
    digits = text.replace("_", "").lower()
    match kind:
        case "null":
            return None
        case "bool":
            truth = {"true": True, "false": False}.get(digits)
            return Misread("true or false") if truth is None else truth
        case "int" | "float" if ":" in text:
            return Misread("a number in base 60")
        case "int":
            return Misread("an octal number") if _OCTAL.match(text) else int(digits, 0)
        case "float":
            return float(digits.replace(".inf", "inf").replace(".nan", "nan"))
        case "timestamp":
            try:
                return _date(text)
            except ValueError:
                return Misread("a date that does not exist")
        case _:
            return text


def _date(text: str) -> datetime.date:
    scalar = yaml.ScalarNode("tag:yaml.org,2002:timestamp", text)
    date: datetime.date = _CONSTRUCTOR.construct_yaml_timestamp(scalar)
    return date
