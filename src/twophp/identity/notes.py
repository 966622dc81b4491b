"""Signed notes: a tree head as text with Ed25519 signatures, in the formats that transparency logs have in common.

The text is a checkpoint (C2SP tlog-checkpoint): the ledger's name, the size, the root in Base64, a line each; then, of
ours, ``number`` and ``at``. A blank line, then a signature line for each signer (C2SP signed-note):

    — NAME BASE64(key id, 4 bytes || signature)

The ledger's signature is over the text with its last line feed; its key id is the first four bytes of SHA-256 over
name, line feed, 0x01 and public key. A witness signs ``cosignature/v1``, ``time SECONDS``, a line each, and the text,
under 0x04; its signature begins with the time as eight bytes (C2SP tlog-cosignature). A public key is written
``NAME+KEY ID IN HEX+BASE64(0x01 || key)``.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Self

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from twophp.core.consistency import HASH_BYTES, verify_consistency
from twophp.core.errors import ConfigError, Refused
from twophp.core.records import Instant

LOG: Final = 1
WITNESS: Final = 4
KEY_ID_BYTES: Final = 4
TIME_BYTES: Final = 8
SEED_BYTES: Final = 32
MOST_CHARS: Final = 16_384
SIGNED_BY: Final = "\N{EM DASH} "

_NAME: Final = re.compile(r"[!-*,-~]{1,200}")  # Visible, and no plus.
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_PRIVATE: Final = "PRIVATE+KEY+"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says."""

    origin: str
    size: int
    root: bytes
    number: int = 0  # Which of the ledger's heads it is; 0: it does not say.
    at: Instant = 0

    def text(self) -> str:
        """What is signed."""
        root = b64encode(self.root).decode()
        return f"{self.origin}\n{self.size}\n{root}\nnumber {self.number}\nat {self.at}\n"


class PublicKey(msgspec.Struct, frozen=True, kw_only=True):
    """Whose signatures are believed, and of which kind."""

    name: str
    key: bytes
    kind: int = LOG

    @classmethod
    def parse(cls, text: str) -> Self:
        """Understand ``NAME+KEY ID+KEY``; raises ConfigError."""
        try:
            name, key_id, encoded = text.strip().split("+", 2)
            raw = b64decode(encoded, validate=True)
            found = cls(name=name, key=raw[1:], kind=raw[0])
        except (ValueError, BadBase64, IndexError):
            found, key_id = None, ""
        if (
            found is None
            or found.kind not in (LOG, WITNESS)
            or found.key_id.hex() != key_id
            or len(found.key) != SEED_BYTES
        ):
            raise ConfigError(
                "a public key is NAME+ID+BASE64, as `twophp central key` prints it", code="bad_public_key"
            )
        return found

    @property
    def key_id(self) -> bytes:
        """By what its signatures are found."""
        return sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.key).digest()[:KEY_ID_BYTES]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{b64encode(bytes([self.kind]) + self.key).decode()}"


class Signer:
    """An Ed25519 key with a name."""

    def __init__(self, name: str, seed: bytes, kind: int = LOG) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError("the name of a key is visible ASCII without a plus", code="bad_key_name")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(name=name, key=self._key.public_key().public_bytes_raw(), kind=kind)

    @classmethod
    def derived(cls, secret: bytes, purpose: str) -> Self:
        """The key that follows from another secret, for a purpose of its own; it is named after itself."""
        seed = HKDF(SHA256(), SEED_BYTES, salt=None, info=purpose.encode()).derive(secret)
        return cls(f"{purpose}-{sha256(cls('x', seed).public.key).hexdigest()[:8]}", seed)

    @classmethod
    def parse(cls, text: str, kind: int = LOG) -> Self:
        """Understand ``PRIVATE+KEY+NAME+ID+BASE64(0x01 || seed)``, as Go's note writes it; raises ConfigError."""
        try:
            name, _key_id, encoded = text.strip().removeprefix(_PRIVATE).split("+", 2)
            return cls(name, b64decode(encoded, validate=True)[1:], kind)
        except (ValueError, BadBase64):
            message = "a private key is PRIVATE+KEY+NAME+ID+BASE64"
            raise ConfigError(message, code="bad_private_key") from None

    def __str__(self) -> str:
        seed = b64encode(bytes([LOG]) + self._key.private_bytes_raw()).decode()
        return f"{_PRIVATE}{self.public.name}+{self.public.key_id.hex()}+{seed}"

    def sign(self, text: str) -> str:
        """A note of this text."""
        return f"{text}\n{self._line(self._key.sign(text.encode()))}"

    def cosign(self, note: str, seconds: int) -> str:
        """The note with this witness's signature."""
        said = f"cosignature/v1\ntime {seconds}\n{text_of(note)}"
        return note + self._line(seconds.to_bytes(TIME_BYTES) + self._key.sign(said.encode()))

    def _line(self, signature: bytes) -> str:
        return f"{SIGNED_BY}{self.public.name} {b64encode(self.public.key_id + signature).decode()}\n"


def broken_promise(last: Head, now: Head, path: Sequence[bytes]) -> str | None:
    """How ``now`` breaks what ``last`` promised, a fork or a roll-back; None if it continues it.

    ``path`` is the consistency proof that whoever signed both gave.
    """
    if now.size < last.size or now.number < last.number:
        return "roll_back"
    return None if verify_consistency(last.size, last.root, now.size, now.root, path) else "fork"


def text_of(note: str) -> str:
    """What a note's signatures are over."""
    text, blank, _signatures = note.rpartition("\n\n")
    if not blank or len(note) > MOST_CHARS:
        raise _unreadable()
    return text + "\n"


def head_of(note: str, key: PublicKey) -> Head:
    """What a note says, if this key has signed it; raises Refused."""
    if not is_signed(note, key):
        raise Refused(f"the head is not signed by {key.name}", code="bad_signature")
    found = read(note)
    if key.kind == LOG and found.origin != key.name:
        raise Refused(f"the head is of {found.origin}, not of {key.name}", code="bad_signature")
    return found


def read(note: str) -> Head:
    """What a note says, whoever signed it; raises Refused if it is no checkpoint."""
    try:
        origin, size, root, *more = text_of(note).removesuffix("\n").split("\n")
        facts = dict(line.partition(" ")[::2] for line in more)
        numbers = size, facts.get("number", "0"), facts.get("at", "0")
        decoded = b64decode(root, validate=True)
    except (ValueError, BadBase64) as error:
        raise _unreadable() from error
    if len(decoded) != HASH_BYTES or not all(map(_NUMBER.fullmatch, numbers)):
        raise _unreadable()
    size_, number, at = map(int, numbers)
    return Head(origin=origin, size=size_, root=decoded, number=number, at=at)


def is_signed(note: str, key: PublicKey) -> bool:
    """Whether one of the note's signatures is this key's."""
    text = text_of(note)
    for line in note[len(text) + 1 :].splitlines():
        name, _space, encoded = line.removeprefix(SIGNED_BY).partition(" ")
        try:
            signature = b64decode(encoded, validate=True)
        except (ValueError, BadBase64):
            continue
        if name == key.name and signature.startswith(key.key_id) and _holds(text, key, signature[KEY_ID_BYTES:]):
            return True
    return False


def _holds(text: str, key: PublicKey, signature: bytes) -> bool:
    said = text
    if key.kind == WITNESS:
        said = f"cosignature/v1\ntime {int.from_bytes(signature[:TIME_BYTES])}\n{text}"
        signature = signature[TIME_BYTES:]
    try:
        Ed25519PublicKey.from_public_bytes(key.key).verify(signature, said.encode())
    except InvalidSignature:
        return False
    return True


def _unreadable() -> Refused:
    return Refused("that is no signed tree head", code="bad_note")
