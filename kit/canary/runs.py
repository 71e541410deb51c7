"""The columns of a run that all canaries have. Each bridge has a table of its own, with a time for each link."""

from typing import Any, ClassVar

from django.db import models


class RunState(models.TextChoices):
    RUNNING = "running"
    PASSED = "passed"
    BROKEN = "broken"  # at `broken_link`, because of `cause`
    INTERRUPTED = "interrupted"  # the process that ran it is gone


class BaseRun(models.Model):
    """One round trip of a canary: how long each link of the chain took, and which one broke.

    At most one is under way, in all of the fleet: a unique constraint of the table says so. ``Link`` and ``Cause`` are
    the bridge's, links in the order of the chain; each link has a column ``<link>_ms``.
    """

    State = RunState
    Link: type[models.TextChoices]
    Cause: type[models.TextChoices]
    # Links whose time is within that of another one.
    WITHIN: ClassVar[frozenset[str]] = frozenset()

    state = models.TextField(choices=RunState.choices, default=RunState.RUNNING)
    started_at = models.DateTimeField(db_index=True)
    finished_at = models.DateTimeField(null=True)
    broken_link: Any  # a TextField with the choices of Link
    cause: Any  # a TextField with the choices of Cause
    detail = models.TextField(blank=True)  # more about the cause, in our words
    is_dry_run: Any = True  # the gateway was told to drop the push: nothing is known about Apple and Google
    work_ms = models.PositiveIntegerField(null=True)  # CPU time of the canary itself
    pseudonym = models.UUIDField(null=True)  # of what it registered, in events and reports; until that is removed

    class Meta:
        abstract = True

    def timings(self) -> dict[str, int | None]:
        """Return the milliseconds by link, in the order of the chain."""
        return {link.value: getattr(self, f"{link.value}_ms") for link in self.Link}

    def total_ms(self) -> int:
        """Return how long the whole round trip took, as far as it got."""
        return sum(taken or 0 for link, taken in self.timings().items() if link not in self.WITHIN)
