from collections.abc import Iterable
from typing import Any

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

import kit.db.fields

REQUEST = "id, bridge, request_key, source_key, message_id, decided, sender_digest, received_at, reply_due_at"
FACTS = """id, request_id, position, public_key_hash, installation_id, type, route_id, route_generation, state, queue_id,
    dedup_key, collapse_id, grade, payload_dropped, is_wake_up, shortened_by, attempt_count, ambiguous_count, created_at,
    expires_at"""
REPORT = """(SELECT CASE substr(request.reports, n.position + 1, 1)
    WHEN '\\x01' THEN 'success' WHEN '\\x02' THEN 'wrong_token' WHEN '\\x03' THEN 'internal_error'
    WHEN '\\x04' THEN 'not_registered' END
    FROM notifications_answeredrequest AS request
    WHERE request.id = n.request_id AND request.ended_on >= (n.created_at AT TIME ZONE 'UTC')::date - 1)"""
MISSING = 0x80
ERRORS = (0, 0, 0, 1, 3, 2, 0)  # of the reports, by the byte of a verdict
REPORTS = {"success": 1, "wrong_token": 2, "internal_error": 3, "not_registered": 4}


def pack_reports(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Write the reports and recipients of the requests that wait, as far as they are known.

    Whoever answers such a request does so at its deadline, which is over when the first new process starts.
    """
    request_model = apps.get_model("notifications", "OpenRequest")
    for request in request_model.objects.all():
        entries = {place: (code, *names) for place, code, *names in _decided(request)}
        for name in ("OpenNotification", "EndedNotification"):
            rows = apps.get_model("notifications", name).objects.filter(request=request.pk)
            for row in rows.only("position", "report", "state", "public_key_hash", "installation_id"):
                code = REPORTS.get(row.report or "", MISSING)
                entries[row.position] = code, bytes(row.public_key_hash), row.installation_id.encode()
        last = max(entries, default=-1)
        request.reports = bytes(entries.get(place, (0,))[0] for place in range(last + 1))
        parts: Iterable[bytes] = (part for _, entry in sorted(entries.items()) for part in entry[1:])
        request.names = b"".join(len(part).to_bytes(4) + part for part in parts)
        request.save(update_fields=["reports", "names"])


def _decided(request: Any) -> Iterable[tuple[int, int, bytes, bytes]]:
    """Return what was decided at once about a request: the position, the byte of the report, and the recipient."""
    packed, codes, parts = bytes(request.names), bytes(request.decided or b"")[::2].rstrip(b"\0"), []
    while packed:
        end = 4 + int.from_bytes(packed[:4])
        parts.append(packed[4:end])
        packed = packed[end:]
    places = [place for place, code in enumerate(codes) if code]
    return [(place, 1 + ERRORS[codes[place]], *names) for place, *names in zip(places, parts[::2], parts[1::2])]


class Migration(migrations.Migration):
    """Keep all reports of a request in its row. Requests that were answered keep theirs where they are."""

    dependencies = [("notifications", "0014_one_table_of_halts")]
    operations = [
        migrations.RunSQL("DROP VIEW notifications_notification; DROP VIEW notifications_notificationrequest"),
        migrations.AddField("openrequest", "reports", kit.db.fields.BytesField(default=b"")),
        migrations.RenameField("openrequest", "decided_names", "names"),
        migrations.RunSQL("UPDATE notifications_openrequest SET names = '' WHERE names IS NULL"),
        migrations.AlterField("openrequest", "names", kit.db.fields.BytesField()),
        migrations.AddField("answeredrequest", "reports", kit.db.fields.BytesField(null=True)),
        migrations.RunPython(pack_reports),
        migrations.AlterField("openrequest", "reports", kit.db.fields.BytesField()),
        migrations.RemoveField("opennotification", "report"),
        migrations.AlterField("endednotification", "report", models.TextField(null=True)),
        migrations.RunSQL(f"""
            CREATE VIEW notifications_notificationrequest AS
                SELECT {REQUEST}, 'waiting' AS state, reply_address, reports, names, NULL::timestamptz AS answered_at,
                    date '9999-12-31' AS ended_on
                FROM notifications_openrequest
                UNION ALL SELECT {REQUEST}, 'answered', NULL::bytea, reports, NULL::bytea, answered_at, ended_on
                FROM notifications_answeredrequest;
            CREATE VIEW notifications_notification AS
                SELECT {FACTS}, {REPORT} AS report, chat_id, message, wake, next_attempt_at, unsent_since, lease_until,
                    NULL::timestamptz AS finished_at, date '9999-12-31' AS ended_on
                FROM notifications_opennotification AS n
                UNION ALL SELECT {FACTS}, coalesce(report, {REPORT}), NULL::bytea, NULL::bytea, NULL::bytea,
                    NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, finished_at, ended_on
                FROM notifications_endednotification AS n;
            CREATE TRIGGER refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON notifications_notificationrequest
                FOR EACH ROW EXECUTE FUNCTION notifications_refuse();
            CREATE TRIGGER refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON notifications_notification
                FOR EACH ROW EXECUTE FUNCTION notifications_refuse();
        """),
    ]
