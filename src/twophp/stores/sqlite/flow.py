"""A batch under way, as a generator: it yields each step that has to wait, and is resumed when the step has ended.

One logic serves two kinds of callers. An event loop runs a yielded step in a thread; a thread runs it in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, TypeAlias

from twophp.kernel.apply import Failure

if TYPE_CHECKING:
    from twophp.kernel.apply import Job, Outcome

log: Final = logging.getLogger("twophp.store")

Wait: TypeAlias = Callable[[], object]
Flow: TypeAlias = Generator[Wait, None, None]


def run_here(flow: Flow, wait: Wait | None = None) -> None:
    """Run a batch to its end, with each step that waits in place: for a caller that may block."""
    if wait is None:
        wait = next(flow, None)
    while wait is not None:
        error: BaseException | None = None
        try:
            wait()
        except BaseException as raised:  # noqa: BLE001 - thrown into the batch, which handles it.
            error = raised
        wait = resumed(flow, error)


def resumed(flow: Flow, error: BaseException | None) -> Wait | None:
    """Go on with a batch after the step that it waited for; return its next such step, or None at its end."""
    if error is None:
        return next(flow, None)
    try:
        return flow.throw(error)
    except StopIteration:
        return None


def tell(jobs: list[Job], outcomes: list[Outcome]) -> None:
    """Tell each caller its outcome, in the order of the changes. A callback that raises does not stop the others."""
    stopped: BaseException | None = None
    for (_command, done), outcome in zip(jobs, outcomes, strict=True):
        failed = type(outcome) is Failure
        try:
            if callable(done):
                if failed:
                    done(None, outcome.error)
                else:
                    done(outcome, None)
            elif done.done():  # The caller has cancelled its wait.
                continue
            elif failed:
                done.set_exception(outcome.error)
            else:
                done.set_result(outcome)
        except Exception:  # Of a callback; or the loop of a future was closed.
            log.exception("the outcome of a change could not be delivered to its caller")
        except BaseException as error:  # noqa: BLE001 - raised below, after every caller was told.
            stopped = error
    if stopped is not None:
        raise stopped
