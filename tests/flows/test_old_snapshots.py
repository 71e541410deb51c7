"""What was worked off is read no more, also while somebody keeps a snapshot open, for which PostgreSQL keeps it."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from kit.db.partitions import UNDER_WAY
from kit.db.statements import fetch
from kit.sessions import BATCH_WORKER, set_all
from kit.turns import LONG_AGO, RECENT, Stage
from notifications.models import Notification, NotificationRequest
from tests import factories
from tests.delivering import make_due, other_session
from tests.turns import Process
from waku_bridge.models import InboundEnvelope, OutboundReply

pytestmark = pytest.mark.django_db(transaction=True)
ROWS = 3000
# Of a row, as many others.
_MULTIPLY = """
    INSERT INTO {table}_under_way SELECT copy.* FROM {table}_under_way AS row, generate_series(1, %(rows)s) AS n,
        concat('\\x', md5(concat(to_jsonb(row), n))) AS new_hash,
        jsonb_populate_record(row, jsonb_build_object('{key}', {value}, 'envelope_hash', new_hash)) AS copy
"""


def work_off(table: str, key: str = "id", value: str = "row.id * 100000 + n") -> None:
    """Make many rows like the ones that are there, and end all of them."""
    with connection.cursor() as cursor:
        cursor.execute(_MULTIPLY.format(table=table, key=key, value=value), {"rows": ROWS})
        cursor.execute(f"DELETE FROM {table}_under_way")


def pages_read(stage: Stage, *, nothing_before: datetime) -> int:
    """Return how many pages a look for rows of this stage reads."""
    values = {"now": timezone.now(), "nothing_before": nothing_before}
    [([plan],)] = fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT EXISTS ({stage.waits})", values)
    read: dict[str, Any] = plan["Plan"]
    return int(read["Shared Hit Blocks"] + read["Shared Read Blocks"])


def test_a_look_reads_nothing_that_was_worked_off() -> None:
    hour_ago = timezone.now() - timedelta(hours=1)
    notification = make_due(state=Notification.State.IN_FLIGHT, lease_until=hour_ago, dedup_key=None)
    make_due(next_attempt_at=hour_ago, expires_at=hour_ago, dedup_key=None)
    make_due(next_attempt_at=hour_ago, expires_at=timezone.now() + timedelta(days=1), dedup_key=None)
    requests = NotificationRequest.objects.filter(pk=notification.request_id)
    requests.update(state=NotificationRequest.State.WAITING, ended_on=UNDER_WAY, reply_due_at=hour_ago)
    factories.make_envelope(state=InboundEnvelope.State.RECEIVED, at=hour_ago)
    for state in (OutboundReply.State.PENDING, OutboundReply.State.PUBLISHED):
        factories.make_reply(state=state, at=hour_ago)
    with other_session() as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT FROM notifications_queue")
        work_off("waku_bridge_inboundenvelope", "hash", "new_hash")
        for table in ("waku_bridge_outboundreply", "notifications_notificationrequest", "notifications_notification"):
            work_off(table)
        fetch(f"SELECT {set_all(BATCH_WORKER)}")
        stages = [stage for stage in Process().worker._stages if stage.oldest]
        recent = timezone.now() - RECENT
        read = [pages_read(stage, nothing_before=recent) for stage in stages]
        before = [pages_read(stage, nothing_before=LONG_AGO) for stage in stages]
    assert len(read) == 7
    assert max(read) < 20
    assert min(before) > 100
