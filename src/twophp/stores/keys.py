"""Key rings: the facts kept about a key, how a ring changes, and how a setting spells a ring.

A setting, as in ``TWOPHP_KEYS``, is a list of ``name:base64`` separated by commas or line ends; the first key is
active and all of them open. ``TWOPHP_KEYS_FILE`` names a file that holds the same. A ring file is JSON:

    {"version": 1, "active": "5f0c9a1e", "rotating": false, "keys": [
      {"name": "5f0c9a1e", "key": "<base64 of 32 bytes>", "created_at": 1767225600000, "replaced_at": null}]}

``rotating`` is true from the moment a new key becomes active until every row was processed, so that an interrupted
rotation is continued and no second key is minted. Times are milliseconds since the epoch.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from twophp.core.errors import ConfigError
from twophp.core.records import Instant
from twophp.stores.vault import AesGcmVault, KeyRing, mint_key

log: Final = logging.getLogger("twophp.vault")

KEYS_VARIABLE: Final = "TWOPHP_KEYS"
KEYS_FILE_VARIABLE: Final = "TWOPHP_KEYS_FILE"
RING_VERSION: Final = 1

RETIRE_GRACE_MS: Final = 60_000
"""How long a replaced key stays, even if no row names it. A running service reads the new ring within a second
(``vault.LOOK_EVERY_S``), and bytes that it sealed before that may still wait for the disk."""

_ENTRY: Final = re.compile(r"([A-Za-z0-9._-]{1,64}):([A-Za-z0-9+/_=-]+)")

Provider: TypeAlias = Callable[[], KeyRing | str]
"""Returns the current ring without waiting: it is called on the event loop, see ``provided_vault``."""
Keys: TypeAlias = KeyRing | str | Provider
"""A ring, one written as in ``TWOPHP_KEYS``, or a callable that returns one."""


class RingKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key and its dates. Its representation shows no key, so that no log or traceback does."""

    name: str
    key: bytes
    created_at: Instant
    replaced_at: Instant | None = None

    def __repr__(self) -> str:
        return f"RingKey(name={self.name!r})"


class StoredRing(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a ring file."""

    active: str
    keys: tuple[RingKey, ...]
    rotating: bool = False
    version: int = RING_VERSION

    def ring(self) -> KeyRing:
        """The keys alone, checked."""
        return KeyRing({key.name: key.key for key in self.keys}, self.active)


def fresh_ring(now: Instant) -> StoredRing:
    """A ring with one key."""
    name, key = mint_key()
    return StoredRing(active=name, keys=(RingKey(name=name, key=key, created_at=now),))


def begin_rotation(stored: StoredRing, now: Instant) -> StoredRing:
    """A new active key, and every old one kept; or the same ring while an earlier rotation is unfinished."""
    if stored.rotating:
        return stored
    name, key = mint_key()
    kept = (_replaced(old, now) if old.name == stored.active else old for old in stored.keys)
    keys = (*kept, RingKey(name=name, key=key, created_at=now))
    return StoredRing(active=name, keys=keys, rotating=True)


def finish_rotation(stored: StoredRing) -> StoredRing:
    """The ring after a rotation has processed every row."""
    return msgspec.structs.replace(stored, rotating=False)


def retire(stored: StoredRing, in_use: Collection[str], now: Instant) -> StoredRing:
    """The ring without the keys that no row names and that were replaced long enough ago."""
    return msgspec.structs.replace(stored, keys=tuple(key for key in stored.keys if _stays(key, stored, in_use, now)))


def _stays(key: RingKey, stored: StoredRing, in_use: Collection[str], now: Instant) -> bool:
    recently = key.replaced_at is None or now < key.replaced_at + RETIRE_GRACE_MS
    return key.name == stored.active or key.name in in_use or recently


def _replaced(key: RingKey, now: Instant) -> RingKey:
    return msgspec.structs.replace(key, replaced_at=now)


def parse_keys(text: str, where: str = KEYS_VARIABLE) -> KeyRing:
    """The ring that a setting spells. An error message quotes no more of it than a key's name."""
    entries = [entry.strip() for entry in re.split(r"[,\n]", text) if entry.strip()]
    if not entries:
        message = f"{where} holds no key; write name:base64, the active key first"
        raise ConfigError(message, code="bad_key_ring")
    keys = dict(_parse_entry(entry, number, where) for number, entry in enumerate(entries, 1))
    if len(keys) < len(entries):
        message = f"{where} names a key twice"
        raise ConfigError(message, code="bad_key_ring")
    return KeyRing(keys, next(iter(keys)))


def _parse_entry(entry: str, number: int, where: str) -> tuple[str, bytes]:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        message = f"entry {number} of {where} is not name:base64"
        raise ConfigError(message, code="bad_key_ring")
    name, spelled = found.groups()
    try:
        return name, base64.b64decode(spelled.translate(str.maketrans("-_", "+/")), validate=True)
    except binascii.Error as error:
        message = f"key {name!r} of {where} is not base64"
        raise ConfigError(message, code="bad_key_ring") from error


def read_keys(keys: Keys) -> KeyRing:
    """The ring that was given."""
    given = keys() if callable(keys) else keys
    if isinstance(given, str):
        return parse_keys(given, "keys=")
    if not isinstance(given, KeyRing):
        raise ConfigError("keys= must give a KeyRing, or one written as in TWOPHP_KEYS", code="bad_key_ring")
    return given


def provided_vault(provider: Provider) -> AesGcmVault:
    """A vault that asks for the ring again: before a seal, at most once a second, and for a key it does not have.

    A provider that fails later does not take the service down: the last ring is used until it answers again.
    """
    rings = [read_keys(provider)]

    def reload() -> KeyRing | None:
        try:
            newer = read_keys(provider)
        except Exception:
            log.exception("the provider of the keys failed; the last keys that it gave are used")
            return None
        known, rings[0] = rings[0], newer
        return None if (newer.keys, newer.active) == (known.keys, known.active) else newer

    return AesGcmVault(rings[0], reload)


@cache
def dev_ephemeral_key() -> KeyRing:
    """A ring for tests, ``keys=dev_ephemeral_key``: one for the process, and stored nowhere.

    Bytes that it sealed never open again once the process has ended.
    """
    log.warning("keys are ephemeral: what is sealed now does not open after this process")
    return KeyRing.generate()


def configured_keys(keys: Keys | None, environ: Mapping[str, str] | None = None) -> KeyRing | Path | None:
    """The given ring; else the environment's ring or the file that it names; None if nothing is set."""
    environ = os.environ if environ is None else environ
    if keys is not None:
        return read_keys(keys)
    text, path = environ.get(KEYS_VARIABLE), environ.get(KEYS_FILE_VARIABLE)
    if text and path:
        message = f"set {KEYS_VARIABLE} or {KEYS_FILE_VARIABLE}, not both"
        raise ConfigError(message, code="bad_key_ring")
    if text:
        return parse_keys(text)
    return Path(path) if path else None


def checked_keys(given: Keys | None) -> Keys | None:
    """``given``, unchanged. A ring or a text is checked here, and without keys the environment's text is.

    A callable or a file is not read so early.
    """
    if not callable(given):
        configured_keys(given)
    return given
