"""The demo's output for a program: one JSON document, then one line for each row that changes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click
import msgspec

from twophp.cli.demo.scenes import Scene
from twophp.cli.demo.show import Ending, Stage
from twophp.cli.output import print_json
from twophp.cli.rows import row_document
from twophp.core.entry import LedgerEntry


class Report:
    """Says nothing before the end."""

    def begin(self) -> None:
        """Nothing yet."""

    def starting(self) -> AbstractContextManager[object]:
        """Nothing yet."""
        return nullcontext()

    def playing(self, _name: str) -> AbstractContextManager[object]:
        """Nothing yet."""
        return nullcontext()

    def told(self, scene: Scene) -> None:
        """Nothing yet."""

    def end(self, ending: Ending) -> None:
        """Everything."""
        stage = ending.stage
        print_json(
            {
                "holds": ending.holds,
                "folder": str(stage.folder),
                "ledgers": {name: str(path) for name, path in stage.ledgers.items()},
                "services": _services(stage),
                "central": {"url": stage.center.url, "token": stage.center.token, "store": stage.center.store},
                "scenes": {scene.name: _scene(scene, stage) for scene in ending.scenes},
                "checks": ending.checks,
                "runs": ending.runs,
            }
        )

    def going_on(self, ending: Ending) -> None:
        """What follows speaks for itself."""

    def changed(self, entry: LedgerEntry, ledger: str) -> None:
        """A row on a line."""
        click.echo(msgspec.json.encode(row_document(entry, ledger)))


def _services(stage: Stage) -> dict[str, Any]:
    return {
        child.name: {"pid": child.pid, "url": stage.urls.get(child.name), "log": str(child.log)}
        for child in stage.fleet.children
    }


def _scene(scene: Scene, stage: Stage) -> dict[str, Any]:
    calls = list(scene.tree.calls())
    return {
        "holds": scene.holds,
        "client_correlation_id": scene.client_correlation_id,
        "checks": scene.checks,
        "messages": scene.messages,
        "verdicts": [call.pair.verdict for call in calls],
        "rows": [row_document(row, str(stage.ledgers[row.source])) for row in scene.tree.rows()],
    }
