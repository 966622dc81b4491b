"""A central ledger over HTTP, for commands: asked with an operator's token, its problems raised as our errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from twophp.cli.output import note, safe
from twophp.core.entry import LedgerEntry
from twophp.core.errors import ConfigError, DeliveryFailed, Refused, StoreUnavailable
from twophp.core.misfits import UNREADABLE, unreadable
from twophp.delivery.fetch import Answer, Origin, fetch, read_origin
from twophp.engine.environment import secret_in
from twophp.ports import MOST_ROWS, Calls, Find, Initiated, Question, Stalled, Tail, Tree
from twophp.wire.rows import decode_rows

TOKEN_VARIABLE: Final = "TWOPHP_OPERATOR_TOKEN"  # noqa: S105 - A name.
INSECURE_VARIABLE: Final = "TWOPHP_ALLOW_INSECURE"
PAGE: Final = 500
OK: Final = 200
BROKEN: Final = 500
BAD_ANSWER: Final = "bad_answer"
T = TypeVar("T")

STRANGER: Final = "the answer is not the central ledger's"


def is_remote(name: str) -> bool:
    """Whether an argument names a central ledger's URL and not a file."""
    return name.startswith(("http://", "https://"))


class Remote:
    """One central ledger."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self._origin = _origin(url)
        secret = token or secret_in(os.environ, TOKEN_VARIABLE)
        if not secret:
            raise ConfigError(f"say who asks: --token, {TOKEN_VARIABLE} or {TOKEN_VARIABLE}_FILE", code="no_token")
        self._token = secret

    def get(self, path: str, **parameters: Any) -> Any:
        """The document at a path."""
        said = {name: value for name, value in parameters.items() if value is not None}
        return self.ask("GET", path + (f"?{urlencode(said, doseq=True)}" if said else ""))

    def find(self, path: str, **parameters: Any) -> Any:
        """The document at a path; None if there is nothing."""
        try:
            return self.get(path, **parameters)
        except Refused as error:
            if error.code != "not_found":
                raise
            return None

    def ask(self, method: str, path: str, document: Any = None) -> Any:
        """The answer's document.

        Raises Refused with the problem's code, or StoreUnavailable. Nothing that some other server says is taken for an
        answer.
        """
        body = b"" if document is None else msgspec.json.encode(document)
        return _Document(_decoded(asyncio.run(self._answer(method, path, body))))

    def text(self, path: str) -> str:
        """The plain text at a path."""
        try:
            return asyncio.run(self._answer("GET", path, b"")).body.decode()
        except UnicodeDecodeError as error:
            raise Refused(STRANGER, code=BAD_ANSWER) from error

    async def document(self, path: str) -> Any:
        """The document at a path, for who waits for several."""
        return _Document(_decoded(await self._answer("GET", path, b"")))

    async def packed(self, path: str, kind: type[T]) -> T:
        """The MessagePack document at a path."""
        answer = await self._answer("GET", path, b"")
        try:
            return msgspec.msgpack.decode(answer.body, type=kind)
        except UNREADABLE as error:
            raise Refused(f"{STRANGER}: {unreadable(error)}", code=BAD_ANSWER) from error

    async def _answer(self, method: str, path: str, body: bytes) -> Answer:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            answer = await fetch(self._origin, method, path, headers=headers, body=body, most=256 * 1024 * 1024)
        except DeliveryFailed as error:
            raise StoreUnavailable(f"{self.url} gave no answer: {error.reason}", code=error.code) from error
        if answer.status == OK:
            return answer
        code, words = _problem(answer)
        message = f"{self.url} answered {answer.status}: {words}"
        raise StoreUnavailable(message, code=code) if answer.status >= BROKEN else Refused(message, code=code)

    def pages(self, path: str, name: str, **parameters: Any) -> Iterator[list[Any]]:
        """What stands under ``name``, page after page."""
        cursor = None
        while True:
            page = self.get(path, cursor=cursor, limit=PAGE, **parameters)
            yield page[name]
            cursor = page["cursor"]
            if cursor is None:
                return


def _origin(url: str) -> Origin:
    try:
        return read_origin(url, allow_insecure=os.environ.get(INSECURE_VARIABLE) == "1")
    except ConfigError as error:
        if error.code != "tls_required":
            raise
        message = f"plain HTTP goes to this machine alone; use https, or set {INSECURE_VARIABLE}=1"
        raise ConfigError(message, code=error.code) from error


class _Document(dict[str, Any]):
    """What the API answers. If a member that must be there is missing, another server has answered."""

    def __missing__(self, name: str) -> Any:
        raise Refused(f"{STRANGER}: it says nothing of {name}", code=BAD_ANSWER)


def _decoded(answer: Answer) -> dict[str, Any]:
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except UNREADABLE as error:
        raise Refused(f"{STRANGER}: {unreadable(error)}", code=BAD_ANSWER) from error


def _problem(answer: Answer) -> tuple[str, str]:
    """The code of a refusal, and what it means."""
    try:
        document = _Document(_decoded(answer))
        return safe(str(document["code"])), safe(str(document.get("detail") or document["title"]))
    except Refused:
        return BAD_ANSWER, STRANGER


class CentralLedger:
    """The central ledger as a source of rows, beside local files."""

    services: frozenset[str] = frozenset()
    """Empty: no service's rows are all here for certain. The API and the pages say why a row is missing."""

    def __init__(self, url: str) -> None:
        self.name = url
        self._remote = Remote(url)
        self._trees: dict[str, list[LedgerEntry]] = {}
        self._in_trees: set[str] = set()

    def told_about(self, client_correlation_id: str, server_correlation_id: str) -> list[tuple[str, dict[str, Any]]]:
        """Histories stay with the services, who are asked for them; a caller who may not pull gets none."""
        both = f"{quote(client_correlation_id, safe='')}/{quote(server_correlation_id, safe='')}"
        try:
            document = self._remote.find(f"/v1/intents/{both}")
        except Refused as error:
            if error.code != "forbidden":
                raise
            note("only operations may ask the services for journal, attempts and obligations")
            return []
        told = document["told"] if document is not None else ()
        for one in told:
            if one["code"] is not None:
                note(f"{safe(one['name'])} could not be asked for its journal: {safe(one['words'])}")
        answered = ((one["name"], one["evidence"]) for one in told if one["evidence"] is not None)
        return [(f"{name}, through {self.name}", said) for name, said in answered if said["intent"] or said["call"]]

    def entries(self, question: Question) -> Sequence[LedgerEntry]:
        """See ``Store.entries``."""
        match question:
            case Tree(client_correlation_id=id_):
                return self._tree(id_)
            case Find(correlation_id=id_):
                return self._gathered("/v1/entries", MOST_ROWS, correlation_id=id_)
            case Calls(client_correlation_ids=ids):
                found = (self._gathered("/v1/entries", PAGE, correlation_id=id_) for id_ in ids)
                return [entry for entries in found for entry in entries]
            case Initiated(source=source):
                return self._gathered(f"/v1/initiated/{quote(source, safe='')}", MOST_ROWS)[::-1]
            case Tail(limit=limit):
                return self._gathered("/v1/entries", min(limit, MOST_ROWS))
            case Stalled(lease_ended_by=lease_ended_by):
                return self._stalled(with_silent=lease_ended_by is not None)

    def _tree(self, id_: str) -> Sequence[LedgerEntry]:
        """One answer is the whole tree, so its other members bring nothing new."""
        if id_ not in self._trees:
            if id_ in self._in_trees:
                return ()
            document = self._remote.find(f"/v1/trees/{quote(id_, safe='')}")
            calls = document["calls"] if document is not None else ()
            rows = [
                row for call in calls for row in (call["client"], call["server"], *call["rivals"]) if row is not None
            ]
            self._trees[id_] = _entries(rows)
            self._in_trees.update(entry.client_correlation_id for entry in self._trees[id_])
        return self._trees[id_]

    def _stalled(self, *, with_silent: bool) -> list[LedgerEntry]:
        first = self._remote.get("/v1/stalled", limit=PAGE)
        rows = self._gathered("/v1/stalled", MOST_ROWS)
        return rows + (_entries(first["processing_past_lease"]) if with_silent else [])

    def _gathered(self, path: str, most: int, **parameters: str) -> list[LedgerEntry]:
        found: list[Mapping[str, Any]] = []
        for rows in self._remote.pages(path, "rows", **parameters):
            found += rows
            if len(found) >= most:
                break
        return _entries(found[:most])


class CentralWatch:
    """What has arrived at a central ledger since it was last asked."""

    def __init__(self, url: str) -> None:
        self._remote = Remote(url)
        self._seen: int = self._remote.get("/v1/proofs/head")["size"]

    def look(self) -> list[LedgerEntry]:
        """The rows that arrived, oldest first."""
        found: list[Mapping[str, Any]] = []
        for rows in self._remote.pages("/v1/entries", "rows"):
            fresh = [row for row in rows if row["sequence"] > self._seen]
            found += fresh
            if len(fresh) < len(rows) or len(found) >= MOST_ROWS:
                break
        self._seen = max((row["sequence"] for row in found), default=self._seen)
        return _entries(found[::-1])


def _entries(rows: Sequence[Mapping[str, Any]]) -> list[LedgerEntry]:
    return decode_rows(msgspec.json.encode(rows))
