"""Style sheet, scripts and symbol, from this package. Their addresses carry a digest, so browsers may keep them."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from twophp.central.pages.frame import HEADERS, Routes
from twophp.central.pages.rendering import STATIC

TYPES: Final = {
    "ledger.css": "text/css; charset=utf-8",
    "ledger.js": "text/javascript; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "tree.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""Every file there is; nothing else is ever opened."""

FOREVER: Final = "public, max-age=31536000, immutable"
CHECKED: Final = "no-cache"
"""For a script that another one imports, by a name without a digest: asked for again, and mostly not sent again."""


async def file(request: Request) -> Response:
    """One of the files. A page without a symbol of its own has the browser ask for ``favicon.ico``."""
    name = request.path_params.get("name", "icon.svg")
    if name not in TYPES:
        return Response("There is nothing here.\n", 404, HEADERS, "text/plain")
    plain, packed, tag = _read(name)
    kept = FOREVER if "v" in request.query_params else CHECKED
    headers = {**HEADERS, "Cache-Control": kept, "ETag": tag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, 200, headers | {"Content-Encoding": "gzip"}, TYPES[name])
    return Response(plain, 200, headers, TYPES[name])


@cache
def _read(name: str) -> tuple[bytes, bytes, str]:
    plain = (STATIC / name).read_bytes()
    return plain, gzip.compress(plain, 9, mtime=0), f'W/"{hashlib.sha256(plain).hexdigest()[:16]}"'


ROUTES: Final[Routes] = (("/static/{name}", file, ("GET",)), ("/favicon.ico", file, ("GET",)))
