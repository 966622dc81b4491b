"""Where the ledger commands read: local files, and the central ledger by the same protocol.

Each participant keeps its own ledger, so a call's two rows usually lie in two files. Several sources are joined as if
they were one: the rows of a tree are gathered by asking every source for every id that the others have named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from twophp.cli.evidence import evidence_document
from twophp.cli.output import note, sqlite_path
from twophp.cli.remote import CentralLedger, CentralWatch, is_remote
from twophp.core.calltree import CallTree, call_tree, related_ids
from twophp.core.entry import LedgerEntry
from twophp.core.errors import StoreUnavailable
from twophp.core.pairing import Pair, Verdict, pair_up
from twophp.ports import MOST_ROWS, Calls, Evidence, Find, Question, Tail, Tree
from twophp.stores.sqlite.reader import LedgerReader, ledger_reader

NamedEvent: TypeAlias = tuple[str, dict[str, Any]]
"""The name of a source that knows something about a call, and what it knows."""

_ONE_SIDED: Final = frozenset({Verdict.CLIENT_ONLY, Verdict.SERVER_ONLY})


class LocalLedger:
    """A service's own file. It is asked as a central ledger is; what it answers is of one moment."""

    def __init__(self, name: str, reader: LedgerReader) -> None:
        self.name = name
        self._reader = reader
        self.entries = reader.entries

    @property
    def services(self) -> frozenset[str]:
        """The services whose rows are all here: a missing row of theirs is missing for good."""
        service = self._reader.service()
        return frozenset() if service is None else frozenset({service})

    def told_about(self, client_correlation_id: str, server_correlation_id: str) -> Sequence[NamedEvent]:
        """What is known of a call beside its rows, and who says so."""
        found = self._reader.evidence(client_correlation_id, server_correlation_id)
        return [] if found == Evidence() else [(self.name, evidence_document(found))]


LedgerSource: TypeAlias = LocalLedger | CentralLedger


class Rows(msgspec.Struct, frozen=True):
    """What was found; ``cut`` if there may be more than can be shown."""

    entries: tuple[LedgerEntry, ...]
    cut: bool = False


@contextmanager
def joined(names: Sequence[str]) -> Iterator[Ledgers]:
    """All these ledgers as one, each as of the moment it was opened. A file that is named twice is read once.

    A URL is a central ledger's. It is asked first: rows arrive there later than in the files they come from.
    """
    urls = dict.fromkeys(name for name in names if is_remote(name))
    paths = {str(Path(path).resolve()): path for path in map(sqlite_path, _files(names))}
    with ExitStack() as stack:
        sources: list[LedgerSource] = [CentralLedger(url) for url in urls]
        sources += [LocalLedger(path, stack.enter_context(ledger_reader(path))) for path in paths.values()]
        yield Ledgers(sources, names)


def _files(names: Sequence[str]) -> list[str]:
    return [name for name in names if not is_remote(name)]


class Ledgers:
    """Several ledgers, joined."""

    def __init__(self, sources: Sequence[LedgerSource], names: Sequence[str]) -> None:
        self.sources = sources
        self._names = names
        self._found_in: dict[tuple[str, ...], list[str]] = {}
        self.services = frozenset[str]().union(*(source.services for source in sources))

    def ask(self, question: Question) -> Rows:
        """The rows of every source, one source after the other."""
        return self._collected([self._ask(source, question) for source in self.sources])

    def newest(self, limit: int) -> Rows:
        """The newest rows of all sources together, newest first; ``cut`` if there are older ones."""
        rows = self.ask(Tail(limit + 1))
        newest = sorted(rows.entries, key=lambda row: row.phase_1_timestamp, reverse=True)
        return Rows(tuple(newest[:limit]), cut=rows.cut or len(newest) > limit)

    def told_about(self, pair: Pair) -> list[NamedEvent]:
        """What each ledger that has something to say beside the rows says."""
        return [told for source in self.sources for told in source.told_about(*pair.key)]

    def ledger_of(self, entry: LedgerEntry) -> str:
        """The name of the ledger that a row was found in; of all of them, if it was copied."""
        return ", ".join(self._found_in.get(_writing(entry), ()))

    def tree(self, member: str) -> tuple[CallTree, bool]:
        """The whole tree of which ``member`` is any correlation id, and whether it may be larger."""
        gathered = self._gather(member)
        entries = self._looked_at_again(gathered.entries)
        return call_tree(entries, member, read=self.services), gathered.cut

    def pairs_of(self, rows: Sequence[LedgerEntry]) -> list[Pair]:
        """The calls that these rows are about, both sides of each as far as any source has them."""
        ids = [pair.client_correlation_id for pair in pair_up(rows) if pair.verdict in _ONE_SIDED]
        wanted = {(row.client_correlation_id, row.server_correlation_id) for row in rows}
        found = (*rows, *self._calls(ids)) if ids else tuple(rows)
        pairs = pair_up(self._looked_at_again(found), read=self.services)
        return [pair for pair in pairs if pair.key in wanted]

    def _gather(self, member: str) -> Rows:
        """Ask every source for the member's tree, then for all that the rows name, up and down, until nothing is new.

        A source answers with all that it has below an id, so it is not asked again for what it brought itself.
        """
        start = self.ask(Tree(member)) if self._knows(member) else self.ask(Find(member))
        ahead, asked = related_ids(start.entries), set[str]()
        rows, brought, cut = dict.fromkeys(start.entries), [set[str]() for _source in self.sources], start.cut
        while ahead and not cut:
            for source, own in zip(self.sources, brought, strict=True):
                for id_ in sorted(ahead - own):
                    answer = self._ask(source, Tree(id_))
                    own.update(entry.client_correlation_id for entry in answer)
                    rows |= dict.fromkeys(answer)
                    cut = cut or len(answer) >= MOST_ROWS
            asked |= ahead
            ahead = related_ids(rows) - asked
            cut = cut or len(rows) >= MOST_ROWS
        return Rows(tuple(rows)[:MOST_ROWS], cut=cut)

    def _knows(self, client_id: str) -> bool:
        """Whether it is a client's id. A server's is indexed nowhere, and costs a look at every row."""
        return any(self._ask(source, Tree(client_id)) for source in self.sources)

    def _looked_at_again(self, entries: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
        """With the servers' rows of alarming calls as they are by now.

        The sources were opened one after the other. A call that moved on in between may look as if its client knew more
        than its server, or knew alone. What a client's row said then, the server's must say now.
        """
        alarming = [pair.client_correlation_id for pair in pair_up(entries, read=self.services) if pair.is_alarm]
        if not alarming:
            return tuple(entries)
        with joined(self._names) as later:
            fresh = [row for row in later._calls(alarming) if row.actor == "server"]  # noqa: SLF001 - our own kind
            self._found_in |= later._found_in  # noqa: SLF001
        return (*entries, *fresh)

    def _calls(self, ids: Sequence[str]) -> tuple[LedgerEntry, ...]:
        return self.ask(Calls(tuple(ids[:MOST_ROWS]))).entries

    def _ask(self, source: LedgerSource, question: Question) -> Sequence[LedgerEntry]:
        entries = source.entries(question)
        for entry in entries:
            names = self._found_in.setdefault(_writing(entry), [])
            if source.name not in names:
                names.append(source.name)
        return entries

    def _collected(self, answers: Sequence[Sequence[LedgerEntry]]) -> Rows:
        entries = tuple(entry for answer in answers for entry in answer)
        return Rows(entries, cut=any(len(answer) >= MOST_ROWS for answer in answers))


def _writing(entry: LedgerEntry) -> tuple[str, ...]:
    """Which row it is, in any version, and of which writer."""
    return entry.client_correlation_id, entry.server_correlation_id, entry.actor, entry.service_ledger_id


class Watch:
    """Tells what has changed since it was last asked. Each look opens the files anew, so that no log is held up."""

    def __init__(self, names: Sequence[str]) -> None:
        self._seen: dict[str, int] = {}
        self._central = {url: CentralWatch(url) for url in names if is_remote(url)}
        self._away: set[str] = set()
        for path in dict.fromkeys(map(sqlite_path, _files(names))):
            with ledger_reader(path) as reader:
                self._seen[path] = reader.last_line()

    def look(self) -> list[tuple[LedgerEntry, str]]:
        """The rows that changed, each as it is now and with its ledger, in the order they changed."""
        found = [(entry, url) for url in self._central for entry in self._arrived(url)]
        for path, seen in self._seen.items():
            try:
                with ledger_reader(path) as reader:
                    changed, last = reader.changed_after(seen), reader.last_line()
            except StoreUnavailable:  # Its service starts or ends just now: the next look finds what this one missed.
                continue
            found += [(entry, path) for entry in changed]
            self._seen[path] = last
        return found

    def _arrived(self, url: str) -> Sequence[LedgerEntry]:
        """At a central ledger. One that is away is waited for, and that is said once."""
        try:
            arrived = self._central[url].look()
        except StoreUnavailable as error:
            if url not in self._away:
                note(f"waiting: {error.message}")
            self._away.add(url)
            return ()
        self._away.discard(url)
        return arrived
