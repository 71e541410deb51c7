"""The reports of a demonstration: made up, computed once by the real jobs, and stored beside this module.

They are published as those of the last two weeks, and marked as made up. The first real ones replace them.
`make demo-reports` computes them again.
"""

import json
import lzma
import re
from datetime import date
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from kit.db.clock import database_now
from spark_reports.models import PublishedDay, Report, ReportRun
from spark_reports.nights.nights import last_closed_day

STORED = Path(__file__).with_name("reports.json.xz")
DATE = re.compile(r'(?<=")\d{4}-\d\d-\d\d(?=")')


def publish_stored() -> None:
    """Publish the stored reports, unless there are any reports, or the database is an operator's own."""
    if settings.EMBEDDED.get("DATABASE_URL") != settings.DATABASE_URL or PublishedDay.objects.exists():
        return
    now = database_now()
    stored = _stored(last_closed_day(now))
    days = stored["events"]
    with transaction.atomic():
        run = ReportRun.objects.create(
            from_day=min(days),
            to_day=max(days),
            state=ReportRun.State.SUCCEEDED,
            step=ReportRun.Step.DONE,
            **dict.fromkeys(("started_at", "finished_at", "seen_at"), now),
            event_count=sum(days.values()),
            result_count=sum(len(table["rows"]) for table in stored["reports"].values()),
            is_made_up=True,
        )
        for model in Report.__subclasses__():
            table = stored["reports"][model.__name__]
            rows = (dict(zip(table["columns"], row, strict=True)) for row in table["rows"])
            model._default_manager.bulk_create(model(**row) for row in rows)  # noqa: SLF001 - documented
        PublishedDay.objects.bulk_create(
            PublishedDay(day=day, run=run, event_count=events, published_at=now, is_made_up=True)
            for day, events in days.items()
        )


def _stored(last_day: date) -> Any:
    """Return the stored reports with all dates moved, so that the newest is ``last_day``."""
    text = lzma.decompress(STORED.read_bytes()).decode()
    shift = last_day - date.fromisoformat(max(DATE.findall(text)))
    return json.loads(DATE.sub(lambda found: f"{date.fromisoformat(found[0]) + shift}", text))
