"""Where COMMIT runs: on the event loop or in a thread (ADR 34).

On a quick disk the loop waits for COMMIT itself: to wake a thread, and to be woken by it, takes longer than the disk.
On a slow disk a thread waits, because a blocked loop serves no request. The speed is measured at every COMMIT:

- A new writer begins in the thread, so a disk that is slow from the start never stops the loop.
- To the loop: once ``rest_s`` has passed and most of the last ``SAMPLES`` commits in the thread took less than
  ``QUICK_S``. A thread waits for the interpreter's lock as well, which adds and never subtracts, so the quicker half
  of the samples decides.
- Back to the thread: when the loop has stood for ``PATIENCE_S`` beyond ``SLOW_S`` a commit. That is one commit of more
  than 12 ms, or four of 5 ms. A lone one of 10 ms does not count: ``FORGIVEN`` of each second makes up for it.
- Each time this happens soon after a return, the rest doubles, up to ``LONGEST_REST_S``: a disk that is quick and slow
  in turns stops the loop once a minute.
- However quick the commits are, no more than ``SHARE`` of the time goes into them: what is above goes to the thread.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SLOW_S: Final = 0.002
"""A commit may stop the loop for so long; the time beyond that counts against ``PATIENCE_S``."""
QUICK_S: Final = 0.001
"""Commits in the thread have to be so quick before they move to the loop again."""
PATIENCE_S: Final = 0.010
FORGIVEN: Final = 0.02
SHARE: Final = 0.7
BURST_S: Final = 0.1
"""Commits may be above their share for so long."""
SAMPLES: Final = 8
FIRST_REST_S: Final = 1.0
LONGEST_REST_S: Final = 60.0


class CommitPlace:
    """Decides for one writer. Pure: the time and what was measured are arguments, in seconds."""

    def __init__(self) -> None:
        self._is_on_loop = False
        self._samples: deque[float] = deque(maxlen=SAMPLES)  # Of commits in the thread.
        self._rest_s = 0.0
        self._moved_at = 0.0  # When it last moved from one to the other.
        self._seen_at = 0.0
        self._excess_s = 0.0  # Beyond SLOW_S a commit, less what was forgiven.
        self._stood_s = 0.0  # In all commits, less their share.

    def is_on_loop(self, now_s: float) -> bool:
        """Whether the next COMMIT is to run on the loop."""
        if not self._is_on_loop:
            return False
        self._pass_time(now_s)
        return self._stood_s <= BURST_S

    def took(self, now_s: float, seconds: float, *, on_loop: bool) -> None:
        """Note a COMMIT that ended at ``now_s`` and took ``seconds``."""
        if on_loop:
            self._stood_s += seconds
            if seconds > SLOW_S:
                self._excess_s += seconds - SLOW_S
                if self._excess_s > PATIENCE_S:
                    self._leave_the_loop(now_s)
        elif not self._is_on_loop:
            self._samples.append(seconds)
            if len(self._samples) == SAMPLES and now_s - self._moved_at >= self._rest_s and self._is_quick():
                self._is_on_loop, self._moved_at = True, now_s
                self._seen_at, self._excess_s, self._stood_s = now_s, 0.0, 0.0

    def _pass_time(self, now_s: float) -> None:
        passed_s, self._seen_at = max(now_s - self._seen_at, 0.0), now_s
        self._excess_s = max(self._excess_s - FORGIVEN * passed_s, 0.0)
        self._stood_s = max(self._stood_s - SHARE * passed_s, 0.0)

    def _is_quick(self) -> bool:
        return sorted(self._samples)[SAMPLES // 2] < QUICK_S

    def _leave_the_loop(self, now_s: float) -> None:
        stayed_s = now_s - self._moved_at
        again_soon = self._rest_s > 0 and stayed_s < 10 * self._rest_s
        self._rest_s = min(2 * self._rest_s, LONGEST_REST_S) if again_soon else FIRST_REST_S
        self._is_on_loop, self._moved_at = False, now_s
        self._samples.clear()
