"""Sealing: AES-256-GCM with a ring of keys, bound to the row it belongs to (draft §13.4, A-62).

    sealed = version (1 byte) | length of the key's name (1) | name | nonce (12) | ciphertext and tag

The context (service, intent, part) is authenticated with the bytes. Sealed bytes that were changed, or moved to another
row, do not open: a server cannot be made to execute a payload that its client did not register.

New bytes are sealed with the ring's active key; every key in the ring still opens. Nonces are random, so one key should
seal fewer than 2**32 times; rotating is cheap and never takes the service down.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable, Mapping
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from twophp.core.errors import ConfigError, KeyMissing, Tampered
from twophp.core.records import Sealed

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
VERSION: Final = 1
DERIVED_TAG: Final = b"twophp:derived:1:"
LOOK_EVERY_S: Final = 1.0


class KeyRing:
    """Named keys, one of them active. Immutable: rotation makes a new ring."""

    def __init__(self, keys: Mapping[str, bytes], active: str) -> None:
        if active not in keys:
            message = f"the active key {active!r} is not in the ring"
            raise ConfigError(message, code="bad_key_ring")
        for name, key in keys.items():
            if len(key) != KEY_BYTES or not 1 <= len(name.encode()) <= 255:  # noqa: PLR2004 - one byte of length
                message = f"key {name!r} must have {KEY_BYTES} bytes and a short name"
                raise ConfigError(message, code="bad_key_ring")
        self.keys = dict(keys)
        self.active = active

    @classmethod
    def generate(cls) -> Self:
        """A ring with one fresh key."""
        name, key = mint_key()
        return cls({name: key}, name)


def mint_key() -> tuple[str, bytes]:
    """A fresh key and a name for it."""
    return os.urandom(4).hex(), AESGCM.generate_key(8 * KEY_BYTES)


class AesGcmVault:
    """A ``Vault`` over a key ring.

    ``reload`` returns a newer ring, or None while there is none. It is asked before a seal, though not more than once
    a second, so that a running service follows a rotation by another process long before the old key may retire; and
    always when bytes name a key that is not in the ring.
    """

    def __init__(
        self,
        ring: KeyRing,
        reload: Callable[[], KeyRing | None] | None = None,
        *,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reload = reload
        self._seconds = seconds
        self._look_again_at = float("-inf") if reload else float("inf")
        self._adopt(ring)

    def seal(self, plain: bytes, *, context: bytes) -> Sealed:
        """See ``Vault.seal``. The header is authenticated too, so a key's name cannot be swapped."""
        if self._seconds() >= self._look_again_at:
            self._refresh()
        header, cipher = self._sealer
        nonce = os.urandom(NONCE_BYTES)
        return Sealed(header + nonce + cipher.encrypt(nonce, plain, header + context))

    def open(self, sealed: Sealed, *, context: bytes) -> bytes:
        """See ``Vault.open``."""
        name = key_name(sealed)
        start = 2 + len(name)
        header, nonce, body = sealed[:start], sealed[start : start + NONCE_BYTES], sealed[start + NONCE_BYTES :]
        try:
            return self._cipher(name).decrypt(nonce, body, header + context)
        except (InvalidTag, ValueError) as error:
            message = "the sealed bytes, or the row they belong to, were changed"
            raise Tampered(message) from error

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:
        """See ``Vault.derived``."""
        if self._seconds() >= self._look_again_at:
            self._refresh()
        return tuple(_derive(key, purpose) for key in self._keys)

    def _cipher(self, name: bytes) -> AESGCM:
        if name not in self._ciphers:
            self._refresh()
        cipher = self._ciphers.get(name)
        if cipher is None:
            message = f"sealed with key {name.decode(errors='replace')!r}, which is not in the ring"
            raise KeyMissing(message)
        return cipher

    def _refresh(self) -> None:
        if self._reload is None:
            return
        newer = self._reload()
        if newer is not None:
            self._adopt(newer)
        self._look_again_at = self._seconds() + LOOK_EVERY_S

    def _adopt(self, ring: KeyRing) -> None:
        """Header and cipher are swapped as one value: another thread never seals under the wrong name."""
        others = (key for name, key in ring.keys.items() if name != ring.active)
        self._keys = (ring.keys[ring.active], *others)
        self._ciphers = {name.encode(): AESGCM(key) for name, key in ring.keys.items()}
        self._sealer = seal_header(ring.active), self._ciphers[ring.active.encode()]


class ClearVault:
    """A ``Vault`` for a store in memory: there a key would lie beside the bytes that it seals, and protect nothing."""

    def __init__(self) -> None:
        self._key = os.urandom(KEY_BYTES)

    def seal(self, plain: bytes, *, context: bytes) -> Sealed:  # noqa: ARG002 - a vault's signature
        """See ``Vault.seal``."""
        return Sealed(plain)

    def open(self, sealed: Sealed, *, context: bytes) -> bytes:  # noqa: ARG002 - a vault's signature
        """See ``Vault.open``."""
        return sealed

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:
        """See ``Vault.derived``: of a key that is forgotten with the process."""
        return (_derive(self._key, purpose),)


def _derive(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, DERIVED_TAG + purpose, "sha256")


def seal_header(name: str) -> bytes:
    """The first bytes of everything sealed with this key. The length keeps one name from being another's prefix."""
    raw = name.encode()
    return bytes((VERSION, len(raw))) + raw


def key_name(sealed: bytes) -> bytes:
    """The name of the key that sealed these bytes."""
    if len(sealed) < 2 or sealed[0] != VERSION:  # noqa: PLR2004 - version and length
        message = "these are not sealed bytes"
        raise Tampered(message)
    return sealed[2 : 2 + sealed[1]]
