"""The common columns of canary runs. Each bridge has its own table, with a column for the time of each link."""

from typing import Any, ClassVar

from django.db import models

from kit.db.base import table


class RunState(models.TextChoices):
    RUNNING = "running"
    PASSED = "passed"
    BROKEN = "broken"  # at `broken_link`, because of `cause`
    INTERRUPTED = "interrupted"  # the process that ran it is gone


class BaseRun(models.Model):
    """One round trip of a canary: the time of each link, the broken link, and its cause.

    A unique constraint of the table allows only one run at a time, over all processes. ``Link`` and ``Cause`` belong to
    the bridge. Links are in the order of the chain, and each has a column ``<link>_ms``.
    """

    State = RunState
    Link: type[models.TextChoices]
    Cause: type[models.TextChoices]
    # Links whose time is part of the time of another link.
    WITHIN: ClassVar[frozenset[str]] = frozenset()

    state = models.TextField(choices=RunState.choices, default=RunState.RUNNING)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    broken_link: Any  # a TextField with the choices of Link
    cause: Any  # a TextField with the choices of Cause
    detail = models.TextField(blank=True)  # more about the cause, in our own words
    is_dry_run: Any = True  # the gateway drops the push, so nothing is known about Apple and Google
    work_ms = models.PositiveIntegerField(null=True)  # CPU time of the canary itself
    pseudonym = models.UUIDField(null=True)  # of its registration, in events and reports; until that is removed

    class Meta:
        abstract = True

    def timings(self) -> dict[str, int | None]:
        """Return the milliseconds by link, in the order of the chain."""
        return {link.value: getattr(self, f"{link.value}_ms") for link in self.Link}

    def total_ms(self) -> int:
        """Return the milliseconds of the round trip, up to the broken link if there is one."""
        return sum(taken or 0 for link, taken in self.timings().items() if link not in self.WITHIN)

    @classmethod
    def link_seconds(cls) -> str:
        """Return a query for the seconds that each link took in the last round trip. It has names of ours only."""
        columns = ", ".join(f"('{link}', {link}_ms)" for link in cls.Link.values)
        last = f"SELECT * FROM {table(cls)} WHERE state IN ('passed', 'broken') ORDER BY id DESC LIMIT 1"
        return f"""
            SELECT link, milliseconds / 1000.0 FROM ({last}) AS run
            CROSS JOIN LATERAL (VALUES {columns}) AS links (link, milliseconds)
        """
