"""What a wheel stands on, as a software bill of materials: CycloneDX 1.6, in JSON.

What the wheel needs is in its own metadata; which versions of that are tested with it, and what those need in turn, is
in the lock. A component is required if an installation without extras has it, optional if an extra brings it.
"""

from __future__ import annotations

import email
import re
import uuid
import zipfile
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PINNED: Final = re.compile(r"^([a-z0-9-]+)(?:\[[^]]*\])?==(\S+)(.*?)(?=^[a-z0-9]|\Z)", re.MULTILINE | re.DOTALL)
_VIA: Final = re.compile(r"^ +# +(?:via +)?([a-z0-9-]+)", re.MULTILINE)
_OF_US: Final = uuid.UUID("2b0c5a0c-9d5e-5c8e-8a0e-70b0d94b4d0f")  # Only that the same wheel has the same number.


class Pin(msgspec.Struct, frozen=True):
    """A package in the lock."""

    name: str
    version: str
    via: frozenset[str]  # What asked for it.

    @property
    def purl(self) -> str:
        """How others name it."""
        return f"pkg:pypi/{self.name}@{self.version}"


def pins(lock: str) -> dict[str, Pin]:
    """Every package of a lock."""
    found = {}
    for name, version, rest in _PINNED.findall(lock):
        via = frozenset(canonicalize_name(parent) for parent in _VIA.findall(rest)) - {"via"}
        found[name] = Pin(name, version, via)
    return found


def below(roots: Iterable[str], locked: dict[str, Pin]) -> set[str]:
    """The packages of that name, and all that they need."""
    found, waiting = set[str](), [name for name in roots if name in locked]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(pin.name for pin in locked.values() if name in pin.via)
    return found


def render(wheel: Path, lock: Path, at: int) -> bytes:
    """The bill of a wheel, with the time of its commit."""
    content, metadata = wheel.read_bytes(), _metadata(wheel)
    locked = pins(lock.read_text(encoding="utf-8"))
    name, version = canonicalize_name(str(metadata["Name"])), str(metadata["Version"])
    needs = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    plain = {canonicalize_name(one.name) for one in needs if "extra" not in str(one.marker or "")}
    direct = {canonicalize_name(one.name) for one in needs} - {name}
    if unpinned := direct - locked.keys():
        raise LookupError(f"not in the lock: {', '.join(sorted(unpinned))}")
    required, whole = below(plain, locked), below(direct, locked)
    purl = f"pkg:pypi/{name}@{version}"
    bill: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_OF_US, sha256(content).hexdigest())}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "licenses": [{"license": {"id": str(metadata["License-Expression"])}}],
                "hashes": [{"alg": "SHA-256", "content": sha256(content).hexdigest()}],
            },
        },
        "components": [_component(locked[one], is_required=one in required) for one in sorted(whole)],
        "dependencies": [
            {"ref": purl, "dependsOn": sorted(locked[one].purl for one in direct)},
            *(_needs(locked[one], locked, whole) for one in sorted(whole)),
        ],
    }
    return msgspec.json.format(msgspec.json.encode(bill), indent=2) + b"\n"


def _component(pin: Pin, *, is_required: bool) -> dict[str, str]:
    scope = "required" if is_required else "optional"
    return {
        "type": "library",
        "bom-ref": pin.purl,
        "name": pin.name,
        "version": pin.version,
        "scope": scope,
        "purl": pin.purl,
    }


def _needs(pin: Pin, locked: dict[str, Pin], whole: set[str]) -> dict[str, Any]:
    return {"ref": pin.purl, "dependsOn": sorted(locked[one].purl for one in whole if pin.name in locked[one].via)}


def _metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))
