"""What a journal asks its database: written in SQLAlchemy Core, compiled once for a dialect."""

import functools

from sqlalchemy import (
    Dialect,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    not_,
    select,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.expression import ClauseElement

from tenant_pipelines.journal.schema import entries, pruned

# a cycle that was opened stays known: its name is never used again
# and a force is obeyed once, also by a re-execution long after
_PRUNABLE = ("started", "completed", "failed")


class Statements:
    """The statements of a journal, written once and compiled for one dialect.

    They run on the driver's own cursor: at some 20 µs against 100 µs, the cost of a cell is the
    commit and not the way to it.
    """

    def __init__(self, dialect: Dialect) -> None:
        columns = [entries.c[column.name] for column in entries.columns]
        every = select(*columns).order_by(entries.c.seq)
        tenant = entries.c.tenant == bindparam("tenant")
        cycle = entries.c.cycle == bindparam("cycle")
        self._dialect = dialect
        self.insert = self._text(insert(entries))
        self.last_seq = self._text(select(func.max(entries.c.seq)))
        self.all = self._text(every)
        after = entries.c.seq > bindparam("after_seq")
        # "+" keeps SQLite from the primary key, by which it would read every entry since
        # (https://www.sqlite.org/optoverview.html#disqualifying_where_clause_terms_using_unary_)
        self.cycles = self._text(
            select(*columns)
            .where(
                entries.c.kind == literal_column("'cycle_opened'"),
                literal_column("+entries.seq") > bindparam("after_seq"),
            )
            .order_by(literal_column("+entries.seq"))
        )
        self.completions = self._text(
            every.where(entries.c.kind == literal_column("'completed'"), tenant)
        )
        # newest first; "+" as above
        self.completed_elsewhere = self._text(
            select(entries.c.cycle, entries.c.step)
            .where(
                entries.c.kind == literal_column("'completed'"),
                tenant,
                entries.c.cycle != bindparam("cycle"),
            )
            .order_by(literal_column("+entries.seq").desc())
        )
        self.forced = self._text(
            select(*columns).where(
                entries.c.kind == literal_column("'forced'"), entries.c.cycle != bindparam("cycle")
            )
        )
        self.of_cycle = self._text(
            select(*columns)
            .where(cycle, entries.c.tenant != literal_column("''"))
            .order_by(entries.c.tenant, entries.c.seq)
        )
        ended = entries.alias("ended")
        has_completed = exists().where(
            ended.c.kind == literal_column("'completed'"),
            ended.c.tenant == entries.c.tenant,
            ended.c.cycle == entries.c.cycle,
            ended.c.step == entries.c.step,
            ended.c.generation == entries.c.generation,
            ended.c.item == literal_column("''"),
        )
        self.outcomes = self._text(
            select(*columns)
            .where(
                cycle,
                entries.c.tenant != literal_column("''"),
                not_(and_(entries.c.kind == literal_column("'started'"), has_completed)),
            )
            .order_by(entries.c.tenant, entries.c.seq)
        )
        self.of_tenant = self._text(every.where(cycle, tenant, after))
        self.after = self._text(every.where(after))
        self.tenants = self._text(
            select(entries.c.tenant).where(entries.c.tenant != literal_column("''")).distinct()
        )

        newest = entries.alias("newest")
        is_old = and_(
            cycle,
            tenant,
            entries.c.kind.in_([literal_column(f"'{kind}'") for kind in _PRUNABLE]),
            # seqs go on from the newest entry, whose number must not be given twice
            entries.c.seq < select(func.max(newest.c.seq)).scalar_subquery(),
        )
        seqs = func.coalesce(func.sum(entries.c.seq), literal_column("0"))
        self.old = self._text(select(func.count(), seqs).where(is_old))
        self.delete_old = self._text(delete(entries).where(is_old))
        note = sqlite.insert(pruned)
        self.note_pruned = self._text(
            note.on_conflict_do_update(
                index_elements=["cycle"],
                set_={name: pruned.c[name] + note.excluded[name] for name in ("entries", "seqs")},
            )
        )
        self.pruned = self._text(select(*pruned.columns))

    def _text(self, statement: ClauseElement) -> str:
        return str(statement.compile(dialect=self._dialect))


# for a journal that was made before there was anything to prune
CREATE_PRUNED = str(CreateTable(pruned, if_not_exists=True).compile(dialect=sqlite.dialect()))


@functools.cache
def statements() -> Statements:
    """Return the statements for SQLite."""
    return Statements(sqlite.dialect())
