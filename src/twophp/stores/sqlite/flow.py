"""A batch under way, as a generator: it yields what has to wait, and is resumed when that has ended.

One logic for two kinds of callers. An event loop runs what is yielded in a thread; whoever may block runs it in place.
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
    """Run a batch to its end, with everything it waits for in place: for whoever may block."""
    if wait is None:
        wait = next(flow, None)
    while wait is not None:
        error: BaseException | None = None
        try:
            wait()
        except BaseException as raised:  # noqa: BLE001 - the batch knows what becomes of it.
            error = raised
        wait = resumed(flow, error)


def resumed(flow: Flow, error: BaseException | None) -> Wait | None:
    """Go on with a batch after what it waited for; what it waits for next, or None at its end."""
    if error is None:
        return next(flow, None)
    try:
        return flow.throw(error)
    except StopIteration:
        return None


def tell(jobs: list[Job], outcomes: list[Outcome]) -> None:
    """In the order of the changes, each by itself: whoever fails to hear it is no reason not to tell the others."""
    stopped: BaseException | None = None
    for (_command, done), outcome in zip(jobs, outcomes, strict=True):
        failed = type(outcome) is Failure
        try:
            if callable(done):
                if failed:
                    done(None, outcome.error)
                else:
                    done(outcome, None)
            elif done.done():  # A caller that gave up waiting is no reason to stop.
                continue
            elif failed:
                done.set_exception(outcome.error)
            else:
                done.set_result(outcome)
        except Exception:  # Of a callback; or the loop of a future was closed.
            log.exception("somebody could not be told what became of a change")
        except BaseException as error:  # noqa: BLE001 - raised below, when everybody was told.
            stopped = error
    if stopped is not None:
        raise stopped
