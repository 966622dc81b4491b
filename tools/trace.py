"""What one request walks through in our code: ``make trace``.

Each walk is one warm exchange through the middleware, with a plain application behind it, a SQLite store, encryption
on and default settings. Counted are frames of ``src/twophp`` alone: a call, each time a coroutine goes on after a
wait, the files they stand in, and every opcode. These are counts and no times, so one machine says what another does.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final, Self, TypeAlias

import msgspec

import twophp
from twophp import Policy, anonymous
from twophp.asgi import Outgoing, TwoPhaseMiddleware
from twophp.asgi.messages import Message, Receive, Scope, Send
from twophp.delivery.egress import default_tls
from twophp.wire import emit, fields

OURS: Final = str(Path(twophp.__file__).parent) + "/"
WARM: Final = 20  # Exchanges before the first that is counted: caches are full by then.
ROUNDS: Final = 5  # The least of so many counts: a commit may go to the disk on the loop or in a thread.
_MEMORY: Final = "/dev/shm"  # noqa: S108 - a directory of its own is made in it.
BODY: Final = msgspec.json.encode({"sku": "A-1", "quantity": 2, "note": "x" * 250})

Headers: TypeAlias = list[tuple[bytes, bytes]]
_SERVER_ID, _PHASE = fields.SERVER_CORRELATION_ID.key, fields.PHASE_STATE.key
_PLAIN: Final[Headers] = [
    (b"host", b"localhost:8000"),
    (b"accept", b"*/*"),
    (b"user-agent", b"trace/1"),
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(BODY)),
]


class Step(msgspec.Struct):
    """One function of ours, in the order of its first call."""

    file: str
    function: str
    calls: int = 0
    resumed: int = 0
    opcodes: int = 0


class Walk(msgspec.Struct):
    """What was walked through."""

    calls: int
    resumed: int  # Coroutines that went on after a wait. Part of no call.
    files: int
    opcodes: int
    steps: list[Step]


class Tracer:
    """Counts what runs in this thread while it is entered."""

    def __init__(self, root: str = OURS) -> None:
        self._root = root
        self._steps: dict[str, Step] = {}
        self._frames: dict[int, FrameType] = {}  # Kept alive, so that no other frame gets the same number.

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_how: object) -> None:
        sys.settrace(self._before)

    def walk(self) -> Walk:
        """What was counted."""
        steps = list(self._steps.values())
        return Walk(
            calls=sum(step.calls for step in steps),
            resumed=sum(step.resumed for step in steps),
            files=len({step.file for step in steps}),
            opcodes=sum(step.opcodes for step in steps),
            steps=steps,
        )

    def _entered(self, frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if not code.co_filename.startswith(self._root):
            return None
        key = f"{code.co_filename}:{code.co_firstlineno}:{code.co_qualname}"
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = Step(code.co_filename.removeprefix(self._root), code.co_qualname)
        if id(frame) in self._frames:
            step.resumed += 1
        else:
            step.calls += 1
            self._frames[id(frame)] = frame
        frame.f_trace_lines, frame.f_trace_opcodes = False, True

        def counting(_frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
            if event == "opcode":
                step.opcodes += 1
            return counting

        return counting


async def _order(scope: Scope, receive: Receive, send: Send) -> None:
    """The application: reads its request and answers."""
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"10")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"id":"7"}'})


async def _unknown_name(host: str, port: int) -> list[str]:
    """No name server: nothing leaves this machine."""
    raise OSError(host, port)


class Caller:
    """A client without a socket."""

    def __init__(self, app: TwoPhaseMiddleware) -> None:
        self._app = app
        self._count = 0

    def fresh(self) -> str:
        """A client's id that was not used before."""
        self._count += 1
        return f"00000000-0000-4000-8000-{self._count:012d}"

    def new(self) -> Headers:
        """Our fields of a new Phase 1. Made before the counting: a client's work is not the walk's."""
        return emit.phase_one_request(client_correlation_id=self.fresh())

    async def post(self, path: str, own: Headers, body: bytes = BODY, method: str = "POST") -> dict[bytes, bytes]:
        """One request; the header fields of its answer."""
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [*_PLAIN, *own],
            "client": ("127.0.0.1", 4711),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        return dict(sent[0]["headers"])

    async def register(self, own: Headers) -> Headers:
        """Phase 1; what its Phase 2 has to send."""
        answer = await self.post("/orders", own)
        return [*own, (_SERVER_ID, answer[_SERVER_ID])]

    async def confirm(self, own: Headers) -> None:
        """Phase 2."""
        answer = await self.post("/orders/confirm", own, b"")
        assert answer[_PHASE] == b"COMMITTED", answer


Exchange: TypeAlias = Callable[[], Awaitable[object]]
"""One exchange, ready to be counted. What it needs before was done while it was made."""


async def _handshake(caller: Caller) -> Exchange:
    own = caller.new()

    async def both() -> None:
        await caller.confirm(await caller.register(own))

    return both


async def _phase_one(caller: Caller) -> Exchange:
    own = caller.new()
    return lambda: caller.register(own)


async def _phase_two(caller: Caller) -> Exchange:
    own = await caller.register(caller.new())
    return lambda: caller.confirm(own)


async def _auto_confirm(caller: Caller) -> Exchange:
    own = emit.auto_confirm_request(client_correlation_id=caller.fresh(), callback="https://caller.example/told")
    return lambda: caller.post("/orders", own)


async def _replay(caller: Caller) -> Exchange:
    own = await caller.register(caller.new())
    await caller.confirm(own)
    return lambda: caller.confirm(own)


async def _plain_post(caller: Caller) -> Exchange:
    return lambda: caller.post("/orders", [])


async def _plain_get(caller: Caller) -> Exchange:
    return lambda: caller.post("/orders/7", [], method="GET")


WALKS: Final = {
    "handshake": _handshake,
    "phase 1": _phase_one,
    "phase 2": _phase_two,
    "auto-confirm": _auto_confirm,
    "replay": _replay,
    "plain POST": _plain_post,
    "plain GET": _plain_get,
}


async def walks(directory: str) -> dict[str, Walk]:
    """Each exchange, counted. No sweep and no heartbeat comes by: the store is open and nothing else was started."""
    service = TwoPhaseMiddleware(
        _order,
        service="orders",
        store=f"sqlite:///{directory}/trace.db",
        identify=anonymous,
        policies=Policy.standard(),
        allow_insecure=True,
        outgoing=Outgoing(ssl_context=default_tls(), resolver=_unknown_name),
    )
    await service.open()
    caller = Caller(service)
    found: dict[str, Walk] = {}
    try:
        for name, ready in WALKS.items():
            for _warm in range(WARM):
                await (await ready(caller))()
            found[name] = min([await _counted(await ready(caller)) for _round in range(ROUNDS)], key=lambda w: w.calls)
    finally:
        await service.stop()
    return found


async def _counted(exchange: Exchange) -> Walk:
    with Tracer() as tracer:
        await exchange()
    return tracer.walk()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without logs: an auto-confirm's callback goes nowhere, and the outbox warns of it."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def measure() -> dict[str, Walk]:
    """Every walk, in a directory of its own: in memory if there is one, where no commit waits for a disk."""
    with TemporaryDirectory(dir=_MEMORY if Path(_MEMORY).is_dir() else None) as directory, _quiet():
        return asyncio.run(walks(directory))


def main() -> None:
    """Print the figures, and each function of one walk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--walk", choices=tuple(WALKS), default="handshake", help="whose functions are listed")
    chosen = parser.parse_args()
    found = measure()
    if chosen.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    print(f"{'calls':>6} {'go on':>6} {'opcodes':>8}  {chosen.walk}, by the first call")
    for step in found[chosen.walk].steps:
        print(f"{step.calls:6} {step.resumed:6} {step.opcodes:8}  {step.file}: {step.function}")
    print(f"\n{'calls':>6} {'go on':>6} {'files':>6} {'opcodes':>8}  walk")
    for name, walk in found.items():
        print(f"{walk.calls:6} {walk.resumed:6} {walk.files:6} {walk.opcodes:8}  {name}")


if __name__ == "__main__":
    main()
