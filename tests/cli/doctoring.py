"""Seeing the doctor, and what was told."""

from __future__ import annotations

from dataclasses import dataclass

from tests.cli.running import FOUND, OK, UNUSABLE, document, run


@dataclass(frozen=True)
class Told:
    """What a run found: its exit code, and of each check its level, what it means and what to do."""

    code: int
    findings: dict[str, list[tuple[str, str, str]]]

    def __getitem__(self, check: str) -> tuple[str, str, str]:
        (found,) = self.findings[check]
        return found


def doctor(*arguments: object) -> Told:
    result = run("doctor", *arguments, "--json")
    findings: dict[str, list[tuple[str, str, str]]] = {}
    for found in document(result)["findings"]:
        assert (found["level"] == "ok") == (found["remedy"] == ""), found
        findings.setdefault(found["check"], []).append((found["level"], found["means"], found["remedy"]))
    levels = {level for told in findings.values() for level, *_ in told}
    assert result.exit_code == (UNUSABLE if "fail" in levels else FOUND if "warn" in levels else OK)
    return Told(result.exit_code, findings)
