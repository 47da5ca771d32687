"""The series of calls, by upstream, method and subject: looked up once, then counted by plain additions.

Label values are bounded: only so many subjects of each upstream have series of their own (R52).
"""

from __future__ import annotations

from typing import Final

from mcproxy.telemetry.fast_metrics import FastCounter, FastHistogram, Tally

OTHER: Final = "other"
"""The label value that all subjects beyond the limit share."""


class Subjects:
    """The tools and prompts with series of their own: for each upstream, the first `most` that were called (R52)."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: dict[str, set[str]] = {}

    def label(self, upstream: str, subject: str) -> str:
        """The label value of a subject: the subject itself while its upstream has room for more series, else OTHER."""
        known = self._known.get(upstream)
        if known is None:
            known = self._known[upstream] = set()
        if not subject or subject in known:
            return subject
        if len(known) >= self.most:
            return OTHER
        known.add(subject)
        return subject

    def forget(self, upstream: str) -> None:
        """Frees the places of a removed upstream."""
        self._known.pop(upstream, None)


class Account:
    """Counters and histograms of the calls of one method to one subject of one upstream."""

    __slots__ = ("_duration", "_labels", "_outcomes", "_own", "_own_duration", "_requests", "_size", "_sizes")

    def __init__(
        self,
        labels: tuple[str, str, str],
        requests: Tally[FastCounter],
        duration: FastHistogram,
        own: Tally[FastHistogram],
        sizes: Tally[FastHistogram],
    ) -> None:
        self._labels = labels
        self._sizes = sizes
        self._size: FastHistogram | None = None
        self._requests = requests
        self._outcomes: dict[str, FastCounter] = {}
        self._duration = duration
        self._own = own
        self._own_duration: FastHistogram | None = None

    def count(
        self,
        outcome: str,
        seconds: float,
        own: float | None = None,
        trace: str | None = None,
        size: int | None = None,
    ) -> None:
        """Counts a finished call. `own` are the seconds that its upstream did not take, where that is known.

        `trace` is the id of its trace, which its times link to as exemplars; `size`, the bytes of a tool's result.
        """
        count = self._outcomes.get(outcome)
        if count is None:
            count = self._outcomes[outcome] = self._requests.labels(*self._labels, outcome)
        count.inc()
        self._duration.observe(seconds, trace)
        if own is not None:
            if self._own_duration is None:
                self._own_duration = self._own.labels(self._labels[0])
            self._own_duration.observe(own if own > 0 else 0.0, trace)
        if size is not None:
            if self._size is None:
                self._size = self._sizes.labels(self._labels[0], self._labels[2])
            self._size.observe(size)


class Calls:
    """Accounts by upstream, method and subject. Ask for one when a call is over: `forget` may drop it before."""

    def __init__(
        self,
        requests: Tally[FastCounter],
        duration: Tally[FastHistogram],
        own: Tally[FastHistogram],
        sizes: Tally[FastHistogram],
    ) -> None:
        self.subjects: Final = Subjects(1000)
        self.running = 0
        """Calls without an outcome yet."""
        self._requests = requests
        self._duration = duration
        self._own = own
        self._sizes = sizes
        self._accounts: dict[tuple[str, str, str], Account] = {}

    def account(self, upstream: str, method: str, subject: str) -> Account:
        """The account of a finished call; only a look-up if it exists."""
        return self._accounts.get((upstream, method, subject)) or self._opened(upstream, method, subject)

    def _opened(self, upstream: str, method: str, subject: str) -> Account:
        labels = upstream, method, self.subjects.label(upstream, subject)
        if labels not in self._accounts:
            duration = self._duration.labels(upstream, method)
            self._accounts[labels] = Account(labels, self._requests, duration, self._own, self._sizes)
        return self._accounts[labels]

    def forget(self, upstream: str) -> None:
        """Drops the accounts of a removed upstream (R52); `Tally.forget` drops the series themselves."""
        self.subjects.forget(upstream)
        self._accounts = {labels: account for labels, account in self._accounts.items() if labels[0] != upstream}
