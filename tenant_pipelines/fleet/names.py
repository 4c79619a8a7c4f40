"""Which names fleets, shards, steps and tenants may have."""

import re

# Dagster joins fleet, shard and step with "__" into op and job names, which allow [A-Za-z0-9_] only
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Python's splitlines, editors and YAML 1.1 end a line there: one line per cell would be two
_LINE_END = re.compile("[\u2028\u2029]")
IDENTIFIER_WANTED = (
    "a letter, then letters, digits and single underscores, such as 'shard_1' "
    "(Dagster joins these names with '__')"
)


def is_identifier(name: str) -> bool:
    """Tell whether ``name`` can name a fleet, a shard or a step."""
    return IDENTIFIER.fullmatch(name) is not None and len(name) <= 100


def tenant_name_problem(name: str) -> str | None:
    """Return why ``name`` cannot be a tenant, or None.

    Tenant names are free text; what Dagster cannot carry as a partition key is refused (its keys
    hold no ``...`` and no control characters), and so is what ends a line, as names are printed.
    """
    if not name:
        return "an empty name"
    if "..." in name:
        return "'...', which Dagster reserves for ranges of partition keys"
    if _CONTROL.search(name):
        return "a control character"
    if _LINE_END.search(name):
        return "a line or paragraph separator (U+2028, U+2029)"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    if size > 255:
        return f"{size} bytes of UTF-8, more than 255"
    return None
