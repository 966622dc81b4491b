"""Redis through redis-py: what a URL says, a server or the node of a cluster that has our slot, and its errors."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from twophp.core.errors import ConfigError, StoreError, StoreOverloaded, StoreUnavailable, TwoPHPError
from twophp.stores.tasks import in_a_task

try:
    from redis import exceptions as said
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.cluster import RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError:  # pragma: no cover - the extra is part of what the tests install.
    is_installed = False
    THEIRS: tuple[Any, ...] = ()
else:
    is_installed = True
    THEIRS = (said.RedisError, said.RedisClusterException, OSError, TimeoutError)

PREFIX: Final = "twophp"
CONNECTIONS: Final = 8
CONNECT_S: Final = 10
REPLY_S: Final = 10
OLDEST: Final = (7, 0)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HAVE_NUMBERS: Final = ("redis", "rediss")
_DATABASE: Final = re.compile(r"(/[0-9]*)?")
_NO_PARTITIONS: Final = (
    "a ledger lies in one slot of Redis: a change may touch an intent, its principal's count, obligations and the"
    " journal, and a cluster changes no two slots as one. Give each service a ledger of its own (prefix=)"
)
# Replies by which the server says that it ran nothing of a script.
_NOTHING_RAN: Final = ("MISCONF", "NOREPLICAS", "BUSY", "UNKILLABLE")


class Place(msgspec.Struct, frozen=True):
    """Where a ledger lies: a server, and what its keys begin with."""

    url: str
    prefix: str = PREFIX


def place_of(url: str) -> Place:
    """What a URL says. ``prefix`` is ours, every other option is the driver's."""
    parts = urlsplit(url)
    if parts.scheme in _HAVE_NUMBERS and not _DATABASE.fullmatch(parts.path):
        message = f"{parts.path} is no database of a server: redis://HOST:PORT/0"  # The driver would take it for 0.
        raise ConfigError(message, code="bad_store_url")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = options.pop("prefix", PREFIX)
    if not _NAME.fullmatch(prefix):
        message = f"prefix={prefix} is no name: letters, digits and . _ -, not more than 64"
        raise ConfigError(message, code="bad_store_url")
    if "partitions" in options:
        raise ConfigError(_NO_PARTITIONS, code="bad_store_url")
    return Place(urlunsplit(parts._replace(query=urlencode(options))), prefix)


class Script(msgspec.Struct, frozen=True):
    """A script, and the name under which a server that has seen it runs it."""

    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script in ``NAME.lua``."""
    text = files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


class Server:
    """A server, or the nodes of a cluster that have the ledger's slot. Nothing is sent twice by itself."""

    def __init__(self, place: Place, *, connections: int = CONNECTIONS) -> None:
        self._place = place
        self._connections = connections
        self._client: Any = None
        self._is_cluster = False
        self.is_new = False  # Whether there is a connection that the server was not looked at through.

    async def connect(self) -> None:
        """Find out what it is."""
        client: Any = self._alone()
        try:
            self._is_cluster = bool((await client.info("cluster")).get("cluster_enabled"))
            if self._is_cluster:
                await client.aclose()
                client = RedisCluster.from_url(self._place.url, **_settings())
                await client.initialize()
                for taker in (client.nodes_manager, *client.get_nodes()):  # It takes no such setting itself.
                    taker.connection_kwargs["redis_connect_func"] = self._noted
        except TypeError as error:
            raise ConfigError(f"the URL of the store cannot be used: {error}", code="bad_store_url") from error
        except BaseException:
            with suppress(*THEIRS):
                await client.aclose()
            raise
        self._client = client

    def _alone(self) -> Any:
        how = {**_settings(), "max_connections": self._connections, "timeout": CONNECT_S}
        try:
            return Redis.from_pool(
                BlockingConnectionPool.from_url(self._place.url, **how, redis_connect_func=self._noted)
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the URL of the store cannot be used: {error}", code="bad_store_url") from error

    async def _noted(self, connection: Any) -> None:
        """The driver connects anew without a word, perhaps to another server, or to one that was set up anew."""
        self.is_new = True
        await connection.on_connect()

    async def ask(self, *words: Any) -> Any:
        """Send a command about one key, and return the answer."""
        await in_a_task()
        return await self._client.execute_command(*words)

    async def run(self, name: str, keys: Sequence[Any], *values: Any) -> Any:
        """Run a script. A server that has not seen it yet says so, and is sent the text."""
        await in_a_task()
        known, how = script(name), await self._to_our_node()
        try:
            return await self._client.execute_command("EVALSHA", known.sha, len(keys), *keys, *values, **how)
        except said.NoScriptError:
            return await self._client.execute_command("EVAL", known.text, len(keys), *keys, *values, **how)

    async def _to_our_node(self) -> dict[str, Any]:
        """All keys have one tag: the driver need not work out the slot of each."""
        return {"target_nodes": (await self._owners())[0]} if self._is_cluster else {}

    async def _owners(self) -> list[Any]:
        """The node that has our slot, and those that would take its place."""
        await self._client.initialize()  # Does nothing, unless a node was lost.
        slot = self._client.keyslot(f"{{{self._place.prefix}}}")
        owners: list[Any] = self._client.nodes_manager.slots_cache.get(slot, [])
        if not owners:
            raise StoreUnavailable("no node of the cluster has the ledger's slot")
        return owners

    async def ask_all(self, *words: str) -> list[Any]:
        """The answers of the server, or of the nodes that have our slot or may come to have it."""
        if not self._is_cluster:
            return [await self._client.execute_command(*words)]
        return [await self._client.execute_command(*words, target_nodes=node) for node in await self._owners()]

    def listener(self) -> Any:
        """A subscription; any node of a cluster tells what any other is told."""
        return self._alone()

    async def close(self) -> None:
        """Leave."""
        if self._client is not None:
            with suppress(*THEIRS):
                await self._client.aclose()


def _settings() -> dict[str, Any]:
    # A command that is sent again by itself could run twice, and nobody would know.
    retry = Retry(NoBackoff(), 0)
    times = {"socket_connect_timeout": CONNECT_S, "socket_timeout": REPLY_S}
    return {"protocol": 2, "client_name": "twophp", "retry": retry, **times}


def is_cut(error: BaseException) -> bool:
    """Whether nothing was heard: the command may have been run."""
    if isinstance(error, said.BusyLoadingError | said.AuthenticationError | said.MaxConnectionsError):
        return False
    return isinstance(error, said.ConnectionError | said.TimeoutError | OSError | TimeoutError)


def is_certain(error: Exception) -> bool:
    """Whether an answer to a script says that it was not run."""
    if isinstance(error, said.BusyLoadingError | said.AuthenticationError | said.MaxConnectionsError):
        return True
    told = (
        *(said.OutOfMemoryError, said.ReadOnlyError, said.NoPermissionError, said.NoScriptError, said.ClusterDownError),
        *(said.TryAgainError, said.AskError, said.RedisClusterException),
    )
    return isinstance(error, told) or str(error).startswith(_NOTHING_RAN)


def translate(error: Exception) -> TwoPHPError:
    """Our error for one of theirs."""
    if isinstance(error, TwoPHPError):
        return error
    for theirs, ours, code, message in _errors():
        if isinstance(error, theirs):
            return ours(f"{message}: {error}", code=code)
    if str(error).startswith("MISCONF"):
        return StoreUnavailable(f"the server cannot write its disk: {error}", code="disk_full")
    return StoreError(f"the change cannot be written: {error!r}", code="bad_change")


def _errors() -> tuple[tuple[Any, type[TwoPHPError], str, str], ...]:
    """What Redis and its driver say -> what we say. The first match counts."""
    if not is_installed:
        return ()
    return (
        (said.OutOfMemoryError, StoreUnavailable, "store_full", "the server's memory is full"),
        (said.ReadOnlyError, StoreUnavailable, "store_read_only", "the server cannot be written"),
        ((said.NoPermissionError, said.AuthenticationError), ConfigError, "no_privilege", "the server refuses us"),
        (said.MaxConnectionsError, StoreOverloaded, "store_overloaded", "all connections to the server are busy"),
        (
            (said.ConnectionError, said.TimeoutError, said.ClusterDownError, said.TryAgainError, OSError, TimeoutError),
            StoreUnavailable,
            "store_unavailable",
            "the server does not answer",
        ),
        (said.RedisClusterException, StoreUnavailable, "store_unavailable", "the cluster does not answer"),
        (said.AskError, StoreUnavailable, "store_unavailable", "the ledger is being moved to another node"),
        (said.ResponseError, StoreError, "store_error", "the server failed"),
    )


@asynccontextmanager
async def in_our_words() -> AsyncIterator[None]:
    """Whatever they raise becomes ours."""
    try:
        yield
    except THEIRS as error:
        raise translate(error) from error
