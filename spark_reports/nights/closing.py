"""Closing of a day (UTC), after which it can be reported. Apart from the export, so that pages need no PyArrow."""

from datetime import UTC, date, datetime, timedelta

# Time after midnight for transactions that began before it to commit.
CLOSED_AFTER = timedelta(minutes=10)


def last_closed_day(now: datetime) -> date:
    """Return the newest closed day."""
    return (now.astimezone(UTC) - CLOSED_AFTER).date() - timedelta(days=1)
