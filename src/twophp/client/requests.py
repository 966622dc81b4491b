"""The adapter for requests: ``session.mount("https://", TwoPhaseAdapter(ledger=..., source=...))``.

What the protocol knows of a call is in ``response.twophp``, a dict as in ``extensions["twophp"]`` of httpx.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final, Unpack

import requests
from requests.adapters import DEFAULT_POOLSIZE, HTTPAdapter
from requests.structures import CaseInsensitiveDict

from twophp.client import redirects
from twophp.client.driver import SyncRuntime
from twophp.client.exchange import CallRequest, Hop, Lost, NotSent, Outcome, Reply, Send
from twophp.client.held import may_be_last
from twophp.client.libraries import DRAINED_BYTES, Body, check_names, refused, whole
from twophp.client.options import options_of
from twophp.client.pools import make_strict, never_left
from twophp.client.raw import BREAKS, guarded, held
from twophp.client.reconciler import MOST, Progress, Reconciliation
from twophp.client.settings import Options, Settings, settings_of
from twophp.core.settings import knows_its_settings
from twophp.wire.fields import Headers
from twophp.wire.parse import MUTATIONS
from twophp.wire.targets import target_of

__all__ = ["TwoPhaseAdapter"]

TIMEOUT: Final = (5.0, 30.0)
CHUNK: Final = 64 * 1024

# With these errors no connection was made, so nothing was sent. (InvalidHeader is not here: it is about the answer.)
_NOT_SENT: Final = (
    requests.exceptions.ConnectTimeout,
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
)


class TwoPhaseAdapter(HTTPAdapter):
    """Both phases of a POST, PUT, PATCH or DELETE; anything else passes. Settings are those of TwoPhaseTransport.

    A ``Retry`` set as ``max_retries`` is for connections that cannot be made, where a request does two phases (A-28).
    """

    @knows_its_settings(Options)
    def __init__(self, *, ledger: str | None = None, source: str | None = None, **options: Unpack[Options]) -> None:
        super().__init__()
        self._pid = os.getpid()
        self._settings = settings_of(ledger, source, options)
        self._machinery = SyncRuntime(self._settings, self._own)  # Last: it reconciles at once, in a thread of its own.

    def send(self, request: Any, *args: Any, **how: Any) -> Any:
        """See requests: one request, one response. Raises PhaseError where the protocol came to no answer."""
        if not _is_ours(request):
            return self.plainly(request, *args, **how)
        names = ("stream", "timeout", "verify", "cert", "proxies")
        http = _Blocking(self, request, dict(zip(names, args, strict=False)) | how)
        hop = redirects.arrive(request.hooks, request)  # The one thing that requests copies to the next request.
        asked = _asked_by(request, self._settings, hop)
        outcome = self._machinery.call(asked, http)
        redirects.leave(request.hooks, request, asked, outcome)
        return http.finished(outcome)

    @property
    def held_bytes(self) -> int:
        """How long an answer may be, in bytes, to be read whole before the flow receives it."""
        return self._settings.max_body_bytes

    def init_poolmanager(self, *args: Any, **how: Any) -> None:
        """See requests."""
        super().init_poolmanager(*args, **how)
        make_strict(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **how: Any) -> Any:
        """See requests."""
        manager = super().proxy_manager_for(proxy, **how)
        make_strict(manager)
        return manager

    def plainly(self, request: Any, *args: Any, **how: Any) -> Any:
        """One request and its response, without any protocol of ours."""
        if self._pid != os.getpid():  # The connections of a parent are not to be used by its child.
            self._left_behind = self.poolmanager, self.proxy_manager
            self.proxy_manager = {}
            self.init_poolmanager(DEFAULT_POOLSIZE, DEFAULT_POOLSIZE)
            self._pid = os.getpid()
        return super().send(request, *args, **how)

    def reconcile(self, *, limit: int = MOST, progress: Progress | None = None) -> Reconciliation:
        """Take every open call without a driver to its outcome, once; the transport also does so at intervals."""
        return self._machinery.reconcile(limit=limit, progress=progress)

    def __getstate__(self) -> dict[str, Any]:
        """What requests pickles of an adapter, and the settings: with keys and tokens, where they are said there."""
        state: Any = super().__getstate__()
        return {**state, "settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The copy opens the ledger with its first mutation, in whichever process that is made."""
        self._settings = state["settings"]
        rest = {name: value for name, value in state.items() if name != "settings"}
        super().__setstate__(rest)  # type: ignore[misc]  # The stubs lack it.
        self._pid = os.getpid()
        self._machinery = SyncRuntime(self._settings, self._own, is_lazy=True)

    def close(self) -> None:
        """Stop reconciling, give the ledger back and close the connections."""
        self._machinery.close()
        super().close()

    def _own(self) -> _Blocking:
        """What the reconciler sends with: no caller asked for its requests."""
        return _Blocking(self, requests.Request("GET", "https://localhost").prepare(), {})


def _is_ours(request: Any) -> bool:
    return request.method in MUTATIONS


def _asked_by(request: Any, settings: Settings, hop: Hop | None) -> CallRequest:
    target = target_of(request.url)
    options = options_of()
    hop = redirects.within_origin(hop, target, options.client_correlation_id)
    if not settings.allow_insecure and not target.is_secure:
        raise refused("tls_required", f"{target.resource}: two-phase requests need https, or allow_insecure=True")
    check_names(_raw(name) for name in request.headers)
    body = Body(settings.max_body_bytes)
    for chunk in _chunks(request.body):
        body.add(_raw(chunk))
    # Empty by now, and a redirect takes the body along. What can be rewound, a file, the library rewinds itself.
    if isinstance(request.body, Iterator) and not hasattr(request.body, "seek"):
        request.body = body.content
    headers = [(_field(name), _field(value)) for name, value in request.headers.items()]
    return CallRequest(
        method=request.method,
        target=target,
        headers=whole(headers, body.content),
        body=body.content,
        options=options,
        hop=hop,
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


def _field(text: bytes | str) -> bytes:
    """A header field's name or value, as http.client writes it."""
    return text if isinstance(text, bytes) else text.encode("latin-1")


def _texts(headers: Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


class _Blocking:
    """The ``Http`` of an adapter."""

    def __init__(self, adapter: TwoPhaseAdapter, original: Any, how: dict[str, Any]) -> None:
        self._adapter = adapter
        self._original = original
        self._how = how | {"timeout": how.get("timeout", TIMEOUT)}

    def send(self, effect: Send) -> Reply:
        """See ``Http.send``."""
        request = self._original.copy()
        request.method, request.url, request.body = effect.method, effect.target.url, effect.body or None
        request.headers = CaseInsensitiveDict(_texts(effect.headers))
        if effect.method == "POST" and not effect.body:
            request.headers["Content-Length"] = "0"
        try:
            native = self._adapter.plainly(request, **(self._how | {"stream": True}))
        except BREAKS as error:
            unsent = isinstance(error, _NOT_SENT) or never_left(error)
            raise NotSent(error) if unsent else Lost(error) from error
        raw = native.raw.headers.items()
        reply = Reply(
            status=native.status_code,
            headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in raw],
            native=native,
        )
        if may_be_last(effect.step, reply.headers):
            try:
                native.raw = held(native.raw, self._adapter.held_bytes)
            except BREAKS as error:
                raise Lost(error, reply) from error
        return reply

    def read(self, reply: Reply, limit: int) -> bytes:
        """See ``Http.read``. What was read before an answer breaks off counts."""
        read = b""
        try:
            for chunk in reply.native.iter_content(CHUNK):
                read += chunk
                if len(read) > max(limit, DRAINED_BYTES):
                    break
        except BREAKS:
            pass
        finally:
            reply.native.close()
        return read

    def keep(self, native: Any) -> None:
        """See ``Http.keep``."""
        try:
            _ = native.content
        except (*BREAKS, RuntimeError):
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
            native.headers = CaseInsensitiveDict(_texts(reply.headers))
            native._content = reply.body  # noqa: SLF001 - as the library's own adapters for tests do
        else:
            native.raw = guarded(native.raw, outcome.info)
        native.request, native.url = self._original, self._original.url
        native.twophp = outcome.info
        return native
