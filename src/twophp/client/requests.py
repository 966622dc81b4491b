"""The adapter for requests: ``session.mount("https://", TwoPhaseAdapter(ledger=..., source=...))``.

What the protocol knows of a call is in ``response.twophp``, a dict as in ``extensions["twophp"]`` of httpx.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from ssl import SSLCertVerificationError
from typing import Any, Final, Unpack

import requests
from requests.adapters import DEFAULT_POOLSIZE, HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.exceptions import MaxRetryError, NewConnectionError, SSLError

from twophp.client.driver import Machinery
from twophp.client.exchange import Asked, Lost, NotSent, Outcome, Reply, Send
from twophp.client.libraries import DRAINED_BYTES, Body, refused, whole
from twophp.client.options import options_of
from twophp.client.reconciler import MOST, Progress, Reconciliation
from twophp.client.settings import Options, Settings, settings_of
from twophp.wire import fields
from twophp.wire.parse import MUTATIONS
from twophp.wire.targets import target_of

__all__ = ["TwoPhaseAdapter"]

TIMEOUT: Final = (5.0, 30.0)
CHUNK: Final = 64 * 1024

# With these, no connection was made that could have carried anything.
_NOT_SENT: Final = (
    requests.exceptions.ConnectTimeout,
    requests.exceptions.ProxyError,
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidHeader,
    requests.exceptions.InvalidSchema,
)


class TwoPhaseAdapter(HTTPAdapter):
    """Both phases of a POST, PUT, PATCH or DELETE; anything else passes. Settings are those of TwoPhaseTransport.

    There are no retries by status or read error to be set: for a mutation they would be second calls (A-28).
    """

    def __init__(self, *, ledger: str | None = None, source: str | None = None, **options: Unpack[Options]) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._machinery = Machinery(settings_of(ledger, source, options), self._own)

    def send(self, request: Any, *args: Any, **how: Any) -> Any:
        """See requests: one request, one response. Raises PhaseError where the protocol came to no answer."""
        if not _is_ours(request):
            return self.plainly(request, *args, **how)
        names = ("stream", "timeout", "verify", "cert", "proxies")
        http = _Blocking(self, request, dict(zip(names, args, strict=False)) | how)
        return http.finished(self._machinery.call(_asked_by(request, self._machinery.settings), http))

    def plainly(self, request: Any, *args: Any, **how: Any) -> Any:
        """One request and its response, without any protocol of ours."""
        if self._pid != os.getpid():  # The connections of a parent are not to be used by its child.
            self._left_behind = self.poolmanager, self.proxy_manager
            self.proxy_manager = {}
            self.init_poolmanager(DEFAULT_POOLSIZE, DEFAULT_POOLSIZE)
            self._pid = os.getpid()
        return super().send(request, *args, **how)

    def reconcile(self, *, limit: int = MOST, progress: Progress | None = None) -> Reconciliation:
        """Take every open call that nobody drives to its outcome, once around; it happens by itself as well."""
        return self._machinery.reconcile(limit=limit, progress=progress)

    def close(self) -> None:
        """Stop reconciling, let go of the ledger and of the connections."""
        self._machinery.close()
        super().close()

    def _own(self) -> _Blocking:
        """The way to send what no caller asked for."""
        return _Blocking(self, requests.Request("GET", "https://localhost").prepare(), {})


def _is_ours(request: Any) -> bool:
    return request.method in MUTATIONS and not any(_raw(name).lower() in fields.BY_KEY for name in request.headers)


def _asked_by(request: Any, settings: Settings) -> Asked:
    target = target_of(request.url)
    if not settings.allow_insecure and not target.is_secure:
        raise refused("tls_required", f"{target.resource}: two-phase requests need https, or allow_insecure=True")
    body = Body(settings.max_body_bytes)
    for chunk in _chunks(request.body):
        body.add(_raw(chunk))
    headers = [(_raw(name), _raw(value)) for name, value in request.headers.items()]
    return Asked(
        method=request.method,
        target=target,
        headers=whole(headers, body.content),
        body=body.content,
        options=options_of(),
    )


def _chunks(body: Any) -> Iterator[bytes | str]:
    """A body of requests is nothing, text, bytes, a file, or anything that can be iterated."""
    if body is None:
        return
    if isinstance(body, bytes | str):
        yield body
    elif hasattr(body, "read"):
        while chunk := body.read(CHUNK):
            yield chunk
    else:
        yield from body


def _raw(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8")


class _Blocking:
    """The ``Http`` of an adapter."""

    def __init__(self, adapter: TwoPhaseAdapter, original: Any, how: dict[str, Any]) -> None:
        self._adapter = adapter
        self._original = original
        self._how = how | {"timeout": how.get("timeout", TIMEOUT)}

    def send(self, effect: Send) -> Reply:
        """See ``Http.send``. Bodies are not read ahead, so that the final one can be a stream."""
        request = self._original.copy()
        request.method, request.url, request.body = effect.method, effect.target.url, effect.body or None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in effect.headers}
        if effect.method == "POST" and not effect.body:
            headers["content-length"] = "0"
        request.headers = CaseInsensitiveDict(headers)
        try:
            native = self._adapter.plainly(request, **(self._how | {"stream": True}))
        except requests.exceptions.RequestException as error:
            raise NotSent(error) if _never_left(error) else Lost(error) from error
        raw = native.raw.headers.items()
        return Reply(
            status=native.status_code,
            headers=[(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in raw],
            native=native,
        )

    def read(self, reply: Reply, limit: int) -> bytes:
        """See ``Http.read``. An answer that breaks off has said what it said."""
        read = b""
        try:
            for chunk in reply.native.iter_content(CHUNK):
                read += chunk
                if len(read) > max(limit, DRAINED_BYTES):
                    break
        except requests.exceptions.RequestException:
            pass
        finally:
            reply.native.close()
        return read

    def keep(self, native: Any) -> None:
        """See ``Http.keep``."""
        try:
            _ = native.content
        except (requests.exceptions.RequestException, RuntimeError):
            native.close()

    def drop(self, reply: Reply | None) -> None:
        """See ``Http.drop``."""
        if reply is not None:
            reply.native.close()

    def finished(self, outcome: Outcome) -> Any:
        """The response to the caller's own request, with what the protocol knows of the call."""
        reply = outcome.reply
        native = reply.native
        if native is None:
            native = requests.Response()
            native.status_code = reply.status
            native.headers = CaseInsensitiveDict(fields.canonical(reply.headers))
            native._content = reply.body  # noqa: SLF001 - as the library's own adapters for tests do
        native.request, native.url = self._original, self._original.url
        native.twophp = outcome.info
        return native


def _never_left(error: Exception) -> bool:
    if isinstance(error, _NOT_SENT):
        return True
    cause = error.args[0] if error.args else None
    reason = cause.reason if isinstance(cause, MaxRetryError) else None
    return isinstance(reason, NewConnectionError) or _is_distrust(reason)


def _is_distrust(reason: Exception | None) -> bool:
    """A server's certificate is looked at before anything is sent; other trouble with TLS may come later."""
    return isinstance(reason, SSLError) and any(isinstance(why, SSLCertVerificationError) for why in reason.args)
