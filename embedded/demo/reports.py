"""The reports of a demonstration: made up, computed once by the real jobs, and stored beside this module.

They are published as those of the last two weeks, and marked as made up. The first real ones replace them.
`make demo-reports` computes them again.
"""

import json
import lzma
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import models, transaction

from kit.db.clock import database_now
from spark_reports.models import PublishedDay, Report, ReportRun
from spark_reports.nights.closing import last_closed_day

STORED = Path(__file__).with_name("reports.json.xz")


def publish_stored() -> None:
    """Publish the stored reports, unless there are any reports, or the database is an operator's own."""
    if settings.EMBEDDED.get("DATABASE_URL") != settings.DATABASE_URL:
        return
    stored, now = json.loads(lzma.decompress(STORED.read_bytes())), database_now()
    last_day = last_closed_day(now)
    shift = last_day - date.fromisoformat(stored["last_day"])
    with transaction.atomic():
        if PublishedDay.objects.exists():
            return
        run = ReportRun.objects.create(
            from_day=last_day - timedelta(days=len(stored["events"]) - 1),
            to_day=last_day,
            state=ReportRun.State.SUCCEEDED,
            step=ReportRun.Step.DONE,
            **dict.fromkeys(("started_at", "finished_at", "seen_at"), now),
            event_count=sum(stored["events"]),
            result_count=sum(len(table["rows"]) for table in stored["reports"].values()),
            is_made_up=True,
        )
        for model in Report.__subclasses__():
            table = stored["reports"][model.__name__]
            rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
            model._default_manager.bulk_create(model(**_shifted(model, row, shift)) for row in rows)  # noqa: SLF001 - documented
        PublishedDay.objects.bulk_create(
            PublishedDay(
                day=run.from_day + timedelta(days=number),
                run=run,
                event_count=events,
                published_at=now,
                renewed_at=now,
                mailed_at=now,
                is_made_up=True,
            )
            for number, events in enumerate(stored["events"])
        )


def _shifted(model: type[Report], row: dict[str, Any], shift: timedelta) -> dict[str, Any]:
    fields = model._meta.fields  # noqa: SLF001 - documented
    dates = [field.name for field in fields if isinstance(field, models.DateField)]
    return row | {name: date.fromisoformat(row[name]) + shift for name in dates}
