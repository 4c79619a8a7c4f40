"""Reads one YAML file into nodes that know their lines; refuses what YAML lets people get wrong.

Guaranteed: one document, mappings with text keys that occur once, no anchors, aliases or tags, at
most 20 levels deep, at most 32 MB, and time linear in the size. What the nodes mean is left to
`schema`, `tenants` and `file`.
"""

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from tenant_pipelines.errors import InvalidFleetFile
from tenant_pipelines.fleet.yaml_scalars import Value, reads_as, scalar_value

MAX_BYTES = 32 * 1024 * 1024
MAX_DEPTH = 20
WANTED_FILE = "a fleet file (YAML)"

_PRINTED = 80
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# what YAML takes for the end of a line, and turns into a space in quotes, is none of these
_NOT_PRINTABLE = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)


@dataclass(slots=True)
class Node:
    """One value of the file.

    Attributes:
        line: where it stands, from 1; in a mapping, the line of its key.
        value: a scalar, a list of nodes, or nodes by key.
        text: the scalar as written, '' for lists and mappings.
    """

    line: int
    value: "Value | list[Node] | dict[str, Node]"
    text: str = ""

    def line_of(self, key: str) -> int:
        """Return the line of ``key`` in this mapping, this node's own when it is not there."""
        inside = self.value.get(key) if isinstance(self.value, dict) else None
        return inside.line if inside is not None else self.line


def read_yaml(path: Path) -> Node:
    """Read the file and return the mapping at its root.

    Args:
        path: the file; every error names it.

    Raises:
        InvalidFleetFile: it cannot be read, is not YAML, or uses what the module refuses.
    """
    text = _read_text(path)
    try:
        root = _build(path, yaml.parse(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        raise _broken(path, text, error) from None
    if root is None or (root.value is None and not root.text):
        raise InvalidFleetFile(
            path=path,
            line=1,
            found="an empty file",
            wanted="a mapping with name, pipeline and shards",
            fix="Write these three keys.",
        )
    if not isinstance(root.value, dict):
        raise InvalidFleetFile(
            path=path,
            line=root.line,
            found=describe(root),
            wanted="a mapping with name, pipeline and shards",
            fix="Write these three keys at the left margin.",
        )
    return root


def _broken(path: Path, text: str, error: yaml.YAMLError) -> InvalidFleetFile:
    """Name the line of a syntax error without quoting it: it may hold a password."""
    parts = (getattr(error, "context", None), getattr(error, "problem", None))
    problem = " ".join(part for part in parts if part) or type(error).__name__
    mark: yaml.Mark | None = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark is not None else None
    has_tab = line is not None and "\t" in "".join(text.split("\n")[line - 1 : line])
    return InvalidFleetFile(
        path=path,
        line=line,
        found=f"broken YAML ({problem})",
        wanted=WANTED_FILE,
        fix="Indent with spaces, not tabs." if has_tab else "Mend the syntax near this line.",
    )


def describe(node: Node) -> str:
    """Say what ``node`` holds, shortened; for keys whose values are no secrets only."""
    value = node.value
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None and not node.text:
        return "nothing"
    if isinstance(value, str):
        return shortened(value)
    return f"{node.text[:_PRINTED]}, which YAML reads as {reads_as(value)}"


def shortened(text: str) -> str:
    """Return ``text`` quoted, cut when it is long."""
    return repr(text) if len(text) <= _PRINTED else f"{text[:_PRINTED]!r}…"


def _read_text(path: Path) -> str:
    """Return the file's text; anything but a regular file is refused without opening it."""

    def refuse(found: str, fix: str, line: int | None = None) -> NoReturn:
        raise InvalidFleetFile(path=path, line=line, found=found, wanted=WANTED_FILE, fix=fix)

    try:
        if not stat.S_ISREG(path.stat().st_mode):
            found = "a directory" if path.is_dir() else "something that is no regular file"
            refuse(found, "Give the path of the fleet file itself, such as fleet.yaml.")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        refuse("no such file", "Check the path; a relative one counts from the working directory.")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        refuse(f"a file that cannot be read ({reason})", "Check the path and its permissions.")
    if len(data) > MAX_BYTES:
        refuse("more than 32 MB", "Split the fleet into several fleet files.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        refuse("bytes that are not UTF-8", "Save the file as UTF-8.", line)
    if odd := _NOT_PRINTABLE.search(text):
        line = text.count("\n", 0, odd.start()) + 1
        refuse(f"the character U+{ord(odd.group()):04X}", "Remove it.", line)
    return text


def _build(path: Path, events: Iterator[Any]) -> Node | None:
    """Fold parser events into nodes without recursion, so that nesting can only be refused."""
    root: Node | None = None
    parents: list[Node] = []
    pending: list[Node | None] = []
    documents = 0
    for event in events:
        kind = type(event)
        if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
            raise _sharing(path, event)
        if kind is yaml.ScalarEvent:
            text = event.value
            value = scalar_value(text, is_plain=event.implicit[0])
            node = Node(event.start_mark.line + 1, value, text)
        elif kind is yaml.MappingStartEvent:
            node = Node(event.start_mark.line + 1, {})
        elif kind is yaml.SequenceStartEvent:
            node = Node(event.start_mark.line + 1, [])
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            parents.pop()
            pending.pop()
            continue
        else:
            documents += kind is yaml.DocumentStartEvent
            if documents > 1:
                raise InvalidFleetFile(
                    path=path,
                    line=event.start_mark.line + 1,
                    found="a second YAML document",
                    wanted="one document",
                    fix="Remove the line '---', or make it a fleet file of its own.",
                )
            continue
        if not parents:
            root = node
        elif isinstance(into := parents[-1].value, list):
            into.append(node)
        elif isinstance(into, dict):
            if (key := pending[-1]) is None:
                pending[-1] = _checked_key(path, node, into)
            else:
                pending[-1] = None
                node.line = key.line
                into[key.text] = node
        if kind is not yaml.ScalarEvent:
            if len(parents) == MAX_DEPTH:
                raise InvalidFleetFile(
                    path=path,
                    line=node.line,
                    found=f"more than {MAX_DEPTH} levels of lists and mappings in each other",
                    wanted=f"at most {MAX_DEPTH}",
                    fix="Flatten them.",
                )
            parents.append(node)
            pending.append(None)
    return root


def _sharing(path: Path, event: Any) -> InvalidFleetFile:
    """Refuse anchors, aliases and tags: they hide what a line means."""
    if isinstance(event, yaml.AliasEvent):
        found = "an alias"
    else:
        found = "a tag" if event.anchor is None else "an anchor"
    return InvalidFleetFile(
        path=path,
        line=event.start_mark.line + 1,
        found=found,
        wanted="plain YAML without anchors (&), aliases (*) and tags (!)",
        fix="Write the value out; quote it if it begins with one of these characters.",
    )


def _checked_key(path: Path, node: Node, mapping: dict[str, Node]) -> Node:
    """Return the key's node after refusing what is no text, merges, or occurs twice."""
    key = node.value
    if isinstance(key, str) and key != "<<" and key not in mapping:
        return node
    if isinstance(key, str) and key in mapping:
        found = f"the key {shortened(key)}, which line {mapping[key].line} has already"
        wanted, fix = "each key once", "Remove one of the two."
    elif key == "<<":
        found, wanted, fix = "the merge key <<", "plain keys", "Write the merged keys out."
    elif isinstance(key, list | dict):
        found = f"a {'list' if isinstance(key, list) else 'mapping'} as a key"
        wanted = "text as a key"
        fix = "Write 'key: value'; quote a key that begins with { or [."
    else:
        found, wanted = f"the key {describe(node)}", "text as a key"
        fix = f'Quote it: "{node.text[:_PRINTED]}".'
    raise InvalidFleetFile(path=path, line=node.line, found=found, wanted=wanted, fix=fix)
