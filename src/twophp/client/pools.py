"""urllib3's connections, as strict as the protocol needs them.

1. http.client takes a head that breaks off for a whole one. Half an answer to Phase 1 would look like a plain server's.
2. urllib3 tells what went wrong, and not whether anything was sent. A connection that could not be made sent nothing.
3. A ``Retry`` may send a two-phase request again only if no connection was made: a plain server would do it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from http.client import HTTPResponse, IncompleteRead
from typing import Any, Final

from urllib3 import Retry
from urllib3.exceptions import ClosedPoolError, EmptyPoolError, LocationValueError

from twophp.wire import fields
from twophp.wire.parse import MUTATIONS

_MARK: Final = "twophp_not_sent"
_UNCONNECTED: Final = (ClosedPoolError, EmptyPoolError, LocationValueError)


def make_strict(manager: Any) -> None:
    """Let a PoolManager, or a ProxyManager, make strict connections."""
    made = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {scheme: _strict_pool(pool) for scheme, pool in made.items()}


def never_left(error: BaseException | None) -> bool:
    """Whether an error, or the one it stands for, says that nothing was sent."""
    if error is None:
        return False
    if isinstance(error, _UNCONNECTED) or _MARK in vars(error):
        return True
    inner = [error.__cause__, getattr(error, "reason", None), getattr(error, "original_error", None), *error.args]
    return any(never_left(one) for one in inner if isinstance(one, BaseException))


@lru_cache(maxsize=64)
def _strict_pool(pool: Any) -> Any:
    if issubclass(pool, _Pool):
        return pool
    connection = type(pool.ConnectionCls.__name__, (_Connection, pool.ConnectionCls), {})
    return type(pool.__name__, (_Pool, pool), {"ConnectionCls": connection})


class _Pool:
    """Mixed into a ConnectionPool."""

    def urlopen(
        self, method: str, url: str, body: Any = None, headers: Any = None, retries: Any = None, **more: Any
    ) -> Any:
        if method in MUTATIONS and _is_two_phase(headers):
            retries = _connecting(Retry.from_int(retries, redirect=False))
        return super().urlopen(method, url, body, headers, retries, **more)  # type: ignore[misc]


def _is_two_phase(headers: Mapping[str, str] | None) -> bool:
    return any(name.lower().encode("latin-1", "replace") in fields.BY_KEY for name in headers or ())


def _connecting(retries: Retry) -> Retry:
    """The same retries, for connections that could not be made and for nothing else."""
    return retries.new(
        connect=retries.total if retries.connect is None else retries.connect,
        read=False,
        status=0,
        other=0,
        redirect=0,
        status_forcelist=(),
        respect_retry_after_header=False,
    )


class _Connection:
    """Mixed into an HTTPConnection: TCP, a proxy's tunnel and TLS all come before the first byte of the request."""

    def request(self, method: str, url: str, body: Any = None, headers: Any = None, **more: Any) -> None:
        if _is_two_phase(headers):
            self.response_class = _Answer
        else:  # A request without our fields fails as it does without us.
            vars(self).pop("response_class", None)
        super().request(method, url, body, headers, **more)  # type: ignore[misc]

    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[misc]
        except Exception as error:
            vars(error)[_MARK] = True
            raise


class _Answer(HTTPResponse):
    """A response whose head is there to its last line, or IncompleteRead."""

    def begin(self) -> None:
        if self.headers is not None:
            return
        watched = _LastLine(self.fp)
        self.fp = watched
        try:
            super().begin()
        finally:
            if self.fp is watched:
                self.fp = watched.fp
        if watched.last not in {b"\r\n", b"\n"}:
            self.close()
            raise IncompleteRead(watched.last)


class _LastLine:
    """A file that remembers the last line read of it."""

    def __init__(self, fp: Any) -> None:
        self.fp = fp
        self.last = b""

    def readline(self, limit: int = -1) -> bytes:
        self.last = self.fp.readline(limit)
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fp, name)
