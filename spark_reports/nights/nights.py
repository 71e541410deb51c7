"""Which days still have to be reported.

Everything follows from what is in the database, so a scheduler that slept, a worker that was killed or a broker that
forgot cost time and no night.
"""

from datetime import UTC, date, datetime, timedelta

from django.conf import settings
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Count, Max, Min

from spark_reports.models import PublishedDay, ReportRun
from spark_reports.nights.closing import last_closed_day

# After a failure: 5, 10, 20 … minutes, and from then on every six hours.
FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=5), timedelta(hours=6)
# A night without reports becomes an alarm this long after REPORTS_HOUR.
GRACE = timedelta(hours=2)


def next_day(now: datetime) -> date | None:
    """Return the day to report now: the oldest one that is owed and not paused after a failure."""
    return next((day for day in owed_days(now) if not _pauses(day, now)), None)


def owed_days(now: datetime) -> list[date]:
    """Return the days without reports, oldest first, as far back as the database has their pushes.

    Days that are partly removed by retention are marked by their reports. Days from before the server was installed are
    not owed.
    """
    last = _newest_due_day(now)
    first = max((now - timedelta(days=settings.NOTIFICATION_RETENTION_DAYS)).astimezone(UTC).date(), _installed_on(now))
    days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    published = set(PublishedDay.objects.filter(day__range=(first, last)).values_list("day", flat=True))
    return [day for day in days if day not in published]


def overdue_days(now: datetime) -> list[date]:
    """Return the owed days whose reports should have been there by now."""
    newest = _newest_due_day(now - GRACE)
    return [day for day in owed_days(now) if day <= newest]


def next_night(now: datetime) -> datetime:
    """Return when the next reports are due."""
    midnight = datetime.combine(_newest_due_day(now) + timedelta(days=2), datetime.min.time(), UTC)
    return midnight + timedelta(hours=settings.REPORTS_HOUR)


def _newest_due_day(now: datetime) -> date:
    by_hour = (now - timedelta(hours=settings.REPORTS_HOUR)).astimezone(UTC).date() - timedelta(days=1)
    return min(by_hour, last_closed_day(now))


def _installed_on(now: datetime) -> date:
    """Return the day on which our tables were made."""
    ours = MigrationRecorder.Migration.objects.filter(app="spark_reports")
    first: datetime | None = ours.aggregate(first=Min("applied"))["first"]
    return (first or now).astimezone(UTC).date()


def _pauses(day: date, now: datetime) -> bool:
    failed = ReportRun.objects.filter(state=ReportRun.State.FAILED, from_day__lte=day, to_day__gte=day)
    found = failed.aggregate(count=Count("pk"), last=Max("finished_at"))
    if not found["count"]:
        return False
    pause = min(FIRST_PAUSE * 2 ** min(found["count"] - 1, 10), LONGEST_PAUSE)
    return bool(now < found["last"] + pause)
