"""The tables of a journal, and what the database itself guarantees about them.

One ``completed`` entry per (cycle, tenant, step, generation, item), one ``cycle_opened`` per cycle,
no entry is ever changed. The file's header carries an application id and the schema version
(https://www.sqlite.org/fileformat2.html, offsets 68 and 60), so that a foreign or newer file is
recognised without opening it for writing.
"""

from sqlalchemy import (
    DDL,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    event,
    text,
)

APPLICATION_ID = 0x74706A31  # "tpj1"
SCHEMA_VERSION = 1

metadata = MetaData()

identity = Table(
    "identity",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

entries = Table(
    "entries",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("cycle", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("step", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("item", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("code_version", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("checksum", Text, nullable=False),
    CheckConstraint(
        "kind IN ('cycle_opened', 'started', 'completed', 'failed', 'forced')", name="known_kind"
    ),
    CheckConstraint("seq > 0 AND generation >= 0 AND attempt >= 0", name="counts"),
)

# what was deleted from each cycle: how many entries, and the sum of their seqs, so that a gap in
# the numbers is known from a lost entry
pruned = Table(
    "pruned",
    metadata,
    Column("cycle", Text, primary_key=True),
    Column("entries", Integer, nullable=False),
    Column("seqs", Integer, nullable=False),
)


def _one_per_cell(kind: str, *columns: str) -> Index:
    return Index(
        f"one_{kind}",
        *(entries.c[name] for name in columns),
        unique=True,
        sqlite_where=text(f"kind = '{kind}'"),
    )


_one_per_cell("completed", "tenant", "cycle", "step", "generation", "item")
_one_per_cell("forced", "cycle", "tenant", "step", "generation")
_one_per_cell("cycle_opened", "cycle")
Index("by_tenant", entries.c.cycle, entries.c.tenant, entries.c.seq)

event.listen(
    entries,
    "after_create",
    DDL(  # type: ignore[no-untyped-call]  # untyped in SQLAlchemy 2.1
        "CREATE TRIGGER entries_are_never_updated BEFORE UPDATE ON entries "
        "BEGIN SELECT RAISE(ABORT, 'journal entries are never updated'); END"
    ),
)
