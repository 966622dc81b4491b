"""A WSGI request as an ASGI scope, and the way back (PEP 3333).

WSGI gives header names in upper case without their hyphens, and joins repeats with commas. Both directions go through
latin-1, as PEP 3333 says; a path is UTF-8 inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from io import BytesIO
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from twophp.asgi.messages import PATH_SAFE, Scope

Environ: TypeAlias = dict[str, Any]
Headers: TypeAlias = list[tuple[str, str]]
StartResponse: TypeAlias = Callable[..., Callable[[bytes], object]]
WsgiApp: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

_FIELD: Final = "HTTP_"
_CONTENT: Final = {"CONTENT_TYPE": b"content-type", "CONTENT_LENGTH": b"content-length"}
_RAW: Final = ("RAW_URI", "REQUEST_URI")  # Of gunicorn; of uWSGI and Werkzeug.


def scope_of(environ: Mapping[str, Any]) -> Scope:
    """The scope of a request."""
    root, rest = environ.get("SCRIPT_NAME", ""), environ.get("PATH_INFO", "")
    path = (root + rest).encode("latin-1")
    query = environ.get("QUERY_STRING", "").encode("latin-1")
    address, port = environ.get("REMOTE_ADDR"), str(environ.get("REMOTE_PORT", ""))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": environ.get("SERVER_PROTOCOL", "HTTP/1.1").partition("/")[2],
        "method": environ["REQUEST_METHOD"],
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "path": path.decode("utf-8", "replace"),
        "raw_path": _raw_path(environ) or quote(path, safe=PATH_SAFE).encode("ascii"),
        "query_string": query,
        "root_path": root.encode("latin-1").decode("utf-8", "replace"),
        "headers": _headers(environ),
        "client": (address, int(port) if port.isdigit() else 0) if address else None,
        "server": (environ.get("SERVER_NAME", ""), int(environ.get("SERVER_PORT") or 0)),
        "state": {},
    }


def _raw_path(environ: Mapping[str, Any]) -> bytes | None:
    """The path as it came over the wire, if the server tells it. An absolute form is left to the decoded path."""
    for name in _RAW:
        raw = environ.get(name)
        if isinstance(raw, str) and raw.startswith("/"):
            return raw.partition("?")[0].encode("latin-1", "replace")
    return None


def _headers(environ: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    headers = [
        (name[len(_FIELD) :].replace("_", "-").lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in environ.items()
        if name.startswith(_FIELD)
    ]
    headers += [(field, environ[name].encode("latin-1")) for name, field in _CONTENT.items() if environ.get(name)]
    return headers


def environ_of(scope: Scope, body: bytes, live: Mapping[str, Any] | None) -> Environ:
    """The environ of the request that an application is to see.

    ``live`` is that of the request that confirms it, which knows the server; a run after a crash has none.
    """
    kept = live or _without_a_request(scope)
    environ = {name: value for name, value in kept.items() if not name.startswith(_FIELD) and name not in _CONTENT}
    root = scope.get("root_path", "")
    path, query = scope["path"].removeprefix(root), scope["query_string"].decode("latin-1")
    environ |= {
        "REQUEST_METHOD": scope["method"],
        "PATH_INFO": path.encode().decode("latin-1"),
        "QUERY_STRING": query,
        "wsgi.input": BytesIO(body),
        "wsgi.input_terminated": True,
    }
    raw = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    environ |= {name: raw for name in _RAW if name in environ}
    for field, value in scope["headers"]:
        name = field.decode("latin-1").upper().replace("-", "_")
        name = name if name in _CONTENT else _FIELD + name
        text = value.decode("latin-1")
        environ[name] = f"{environ[name]},{text}" if name in environ else text
    return environ


def _without_a_request(scope: Scope) -> Environ:
    return {
        "SCRIPT_NAME": scope.get("root_path", "").encode().decode("latin-1"),
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "443" if scope["scheme"] == "https" else "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.errors": _Nowhere(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


class _Nowhere:
    """A text stream that keeps nothing."""

    def write(self, text: str) -> int:
        """Take a text."""
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        """Take several."""

    def flush(self) -> None:
        """Have nothing to write."""


def answer_of(app: WsgiApp, environ: Environ) -> tuple[int, Headers, bytes]:
    """Run the application and gather its whole answer. Raises what it raises."""
    said: list[tuple[str, Headers]] = []
    written: list[bytes] = []

    def start_response(status: str, headers: Headers, _exc_info: object = None) -> Callable[[bytes], object]:
        said[:] = [(status, headers)]  # With ``exc_info`` it replaces what was said: nothing has been sent yet.
        return written.append

    chunks = app(environ, start_response)
    try:
        written.extend(chunks)
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
    if not said:
        raise RuntimeError("the application ended without start_response")
    ((status, headers),) = said
    return int(status.partition(" ")[0]), headers, b"".join(written)


def status_line(status: int) -> str:
    """The status with a phrase, which WSGI asks for."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"
