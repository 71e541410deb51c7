"""When a day (UTC) is over and can be reported. This is apart from the export, so that pages need no Parquet."""

from datetime import UTC, date, datetime, timedelta

# A transaction that began before midnight may commit after it.
CLOSED_AFTER = timedelta(minutes=10)


def last_closed_day(now: datetime) -> date:
    """Return the newest day that is over."""
    return (now.astimezone(UTC) - CLOSED_AFTER).date() - timedelta(days=1)
