"""Ended rows that PostgreSQL keeps for an open snapshot: batches and gauges do not read them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from kit.batches.batch import LONG_AGO, Step
from kit.batches.looking import OVERLAP, query_of
from kit.batches.models import StepMark
from kit.db.base import fetch
from kit.db.sessions import BATCH_WORKER, set_all
from notifications.models import Notification, OpenRequest
from notifications.queues import capacity, queues
from pushserver.console.health.stored import gauges
from tests.rig import rows
from tests.rig.delivering import Process, make_due
from tests.rig.statements import other_session
from waku_bridge.models import InboundEnvelope, OutboundReply

pytestmark = pytest.mark.django_db(transaction=True)
ROWS = 3000
# Copies each row many times.
_MULTIPLY = """
    INSERT INTO {table} SELECT copy.* FROM {table} AS row, generate_series(1, %(rows)s) AS n,
        concat('\\x', md5(concat(to_jsonb(row), n))) AS new_hash,
        jsonb_populate_record(row, jsonb_build_object('{key}', {value}, 'envelope_hash', new_hash)) AS copy
"""


def make_ended_rows(table: str, key: str = "id", value: str = "row.id * 100000 + n") -> None:
    """Make many rows like the existing ones, and end all of them."""
    with connection.cursor() as cursor:
        cursor.execute(_MULTIPLY.format(table=table, key=key, value=value), {"rows": ROWS})
        cursor.execute(f"DELETE FROM {table}")


def pages_read(step: Step, *, nothing_before: datetime) -> int:
    """Return the number of pages that a step reads when it looks for rows."""
    return pages_of(f"SELECT {query_of(step)}", {"now": timezone.now(), "nothing_before": nothing_before})


def pages_of(sql: str, values: Mapping[str, object] | None = None) -> int:
    """Return the number of pages that a statement reads, without those of PostgreSQL's catalogs.

    A session reads catalogs again when its caches were invalidated, for example by schema changes in other databases.
    """
    return min(_pages_of(sql, values) for _ in range(3))


def _pages_of(sql: str, values: Mapping[str, object] | None) -> int:
    [([plan],)] = fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", values)
    read: dict[str, Any] = plan["Plan"]
    return int(read["Shared Hit Blocks"] + read["Shared Read Blocks"])


def pages_counted(*, nothing_before: datetime) -> list[int]:
    """Return the number of pages that each gauge reads, and those for the count of a queue."""
    steps = ("Due", "Inbox", "OverdueReplies", "Deadlines")
    saved = [StepMark(step=step, nothing_before=nothing_before) for step in steps]
    StepMark.objects.bulk_create(saved, update_conflicts=True, unique_fields=["step"], update_fields=["nothing_before"])
    counted = {"ids": [queues.UNSORTED], "after": [None], "limit": 10_000}
    return [*(pages_of(gauge.sql) for gauge in gauges()), pages_of(capacity._COUNT_WAITING, counted)]


def test_a_search_for_open_rows_reads_no_ended_row() -> None:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM notifications_queue, batches_stepmark")  # without rows of other tests
    hour_ago = timezone.now() - timedelta(hours=1)
    notification = make_due(state=Notification.State.IN_FLIGHT, due_at=hour_ago, dedup_key=None)
    make_due(due_at=hour_ago, expires_at=hour_ago, dedup_key=None)
    make_due(due_at=hour_ago, expires_at=timezone.now() + timedelta(days=1), dedup_key=None)
    OpenRequest.objects.filter(pk=notification.request_id).update(reply_due_at=hour_ago)
    rows.make_envelope(state=InboundEnvelope.State.RECEIVED, at=hour_ago)
    for state in (OutboundReply.State.PENDING, OutboundReply.State.PUBLISHED):
        rows.make_reply(state=state, at=hour_ago)
    with other_session() as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT FROM notifications_queue")
        make_ended_rows("waku_bridge_openenvelope", "hash", "new_hash")
        for table in (
            "waku_bridge_openreply",
            "notifications_openrequest",
            "notifications_opennotification",
        ):
            make_ended_rows(table)
        fetch(f"SELECT {set_all(BATCH_WORKER)}")
        steps = [step for step in Process().worker._steps if step.oldest]
        recent = timezone.now() - OVERLAP
        read = [pages_read(step, nothing_before=recent) for step in steps]
        before = [pages_read(step, nothing_before=LONG_AGO) for step in steps]
        counted, counted_before = pages_counted(nothing_before=recent), pages_counted(nothing_before=LONG_AGO)
    assert len(read) == 5
    assert max(read) < 20
    assert min(before) > 100
    assert min(counted_before) > 100
    assert [pages for pages, of_all in zip(counted, counted_before, strict=True) if 3 * pages > of_all] == []
