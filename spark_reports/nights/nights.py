"""Owed days: those without reports, and those whose reports are stale.

They are computed from the database alone. So a scheduler that paused, a worker that was killed or a broker that lost a
message costs time, but no night.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Count, Exists, Max, Min, OuterRef, QuerySet

from spark_reports.jobs.plan import LOOK_BACK_DAYS
from spark_reports.models import PublishedDay, ReportRun

# Time after midnight (UTC) for transactions that began before it to commit. Then a day is closed and can be reported.
CLOSED_AFTER = timedelta(minutes=10)
# After a failure: 5, 10, 20 … minutes, and from then on every six hours.
FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=5), timedelta(hours=6)
# A night without reports becomes an alarm this long after REPORTS_HOUR.
GRACE = timedelta(hours=2)
# The reports of a day are computed from its facts, and from those of the days before it within this time.
LOOK_BACK = timedelta(days=max(LOOK_BACK_DAYS.values()))


def last_closed_day(now: datetime) -> date:
    """Return the newest closed day."""
    return (now.astimezone(UTC) - CLOSED_AFTER).date() - timedelta(days=1)


def next_day(now: datetime) -> date | None:
    """Return the day to report now: the oldest owed day that is not paused after a failure."""
    return next((day for day in owed_days(now) if not _pauses(day, now)), None)


def owed_days(now: datetime) -> list[date]:
    """Return the days without reports or with stale ones, oldest first, as far back as the database has their pushes.

    A day that retention has partly removed is owed, and its reports say so. Days before the installation of the server
    are not owed.
    """
    days = _due_days(now)
    is_stale = _real(days)
    return [day for day in days if is_stale.get(day, True)]


def published_days(first: date, last: date) -> QuerySet[Any]:
    """Return the days of a range that have reports, each with ``is_stale``.

    Reports are stale if they are older than the facts of their own day, or of a day that they look back to.
    """
    rests_on = (OuterRef("day") - LOOK_BACK, OuterRef("day"))
    renewed = PublishedDay.objects.filter(day__range=rests_on, renewed_at__gt=OuterRef("published_at"))
    return PublishedDay.objects.filter(day__range=(first, last)).annotate(is_stale=Exists(renewed)).order_by("day")


def _real(days: Sequence[date]) -> dict[date, bool]:
    """Return those of the days that have reports of real facts, with whether the reports are stale.

    ``days`` are in order, oldest first.
    """
    if not days:
        return {}
    return dict(published_days(days[0], days[-1]).filter(is_made_up=False).values_list("day", "is_stale"))


def overdue_days(now: datetime) -> list[date]:
    """Return the days that should have reports by now and have none. Stale days are not overdue: they are shown."""
    newest = _newest_due_day(now - GRACE)
    days = _due_days(now)
    published = _real(days)
    return [day for day in days if day <= newest and day not in published]


def next_night(now: datetime) -> datetime:
    """Return when the next reports are due."""
    midnight = datetime.combine(_newest_due_day(now) + timedelta(days=2), datetime.min.time(), UTC)
    return midnight + timedelta(hours=settings.REPORTS_HOUR)


def _due_days(now: datetime) -> list[date]:
    """Return the days that should have reports, oldest first."""
    first = max((now - timedelta(days=settings.NOTIFICATION_RETENTION_DAYS)).astimezone(UTC).date(), _installed_on(now))
    return [first + timedelta(days=n) for n in range((_newest_due_day(now) - first).days + 1)]


def _newest_due_day(now: datetime) -> date:
    by_hour = (now - timedelta(hours=settings.REPORTS_HOUR)).astimezone(UTC).date() - timedelta(days=1)
    return min(by_hour, last_closed_day(now))


def _installed_on(now: datetime) -> date:
    """Return the day on which the tables of this app were created."""
    ours = MigrationRecorder.Migration.objects.filter(app="spark_reports")
    first: datetime | None = ours.aggregate(first=Min("applied"))["first"]
    return (first or now).astimezone(UTC).date()


def _pauses(day: date, now: datetime) -> bool:
    runs = ReportRun.objects.filter(from_day__lte=day, to_day__gte=day, is_made_up=False)
    failed = runs.filter(state=ReportRun.State.FAILED)
    found = failed.aggregate(count=Count("pk"), last=Max("finished_at"))
    if not found["count"]:
        return False
    pause = min(FIRST_PAUSE * 2 ** min(found["count"] - 1, 10), LONGEST_PAUSE)
    return bool(now < found["last"] + pause)
