from django.db import migrations, models

FACTS = """id, request_id, position, public_key_hash, installation_id, type, route_id, route_generation, state, queue_id,
    dedup_key, collapse_id, grade, payload_dropped, is_wake_up, shortened_by, attempt_count, ambiguous_count, created_at,
    expires_at"""
REPORT = """(SELECT CASE substr(request.reports, n.position + 1, 1)
    WHEN '\\x01' THEN 'success' WHEN '\\x02' THEN 'wrong_token' WHEN '\\x03' THEN 'internal_error'
    WHEN '\\x04' THEN 'not_registered' END
    FROM notifications_answeredrequest AS request
    WHERE request.id = n.request_id AND request.ended_on >= (n.created_at AT TIME ZONE 'UTC')::date - 1)"""


class Migration(migrations.Migration):
    """Give each open notification one due time: that of its next attempt, or the end of the lease of its claim.

    Only the rows under lease are written.
    """

    dependencies = [("notifications", "0016_fewer_indexes")]
    operations = [
        migrations.RunSQL("DROP VIEW notifications_notification"),
        migrations.RemoveIndex("opennotification", "notification_queue"),
        migrations.RemoveIndex("opennotification", "notification_expiring"),
        migrations.RemoveIndex("opennotification", "notification_leased"),
        migrations.RenameField("opennotification", "next_attempt_at", "due_at"),
        migrations.RunSQL(
            "UPDATE notifications_opennotification SET due_at = coalesce(lease_until, created_at) WHERE due_at IS NULL"
        ),
        migrations.RemoveField("opennotification", "lease_until"),
        migrations.AlterField("opennotification", "due_at", models.DateTimeField()),
        migrations.AddIndex("opennotification", models.Index(fields=["queue_id", "due_at"], name="notification_due")),
        migrations.AddIndex("opennotification", models.Index(fields=["expires_at"], name="notification_expiring")),
        migrations.RunSQL(f"""
            CREATE VIEW notifications_notification AS
                SELECT {FACTS}, {REPORT} AS report, chat_id, message, wake, due_at, unsent_since,
                    NULL::timestamptz AS finished_at, date '9999-12-31' AS ended_on
                FROM notifications_opennotification AS n
                UNION ALL SELECT {FACTS}, coalesce(report, {REPORT}), NULL::bytea, NULL::bytea, NULL::bytea,
                    NULL::timestamptz, NULL::timestamptz, finished_at, ended_on
                FROM notifications_endednotification AS n;
            CREATE TRIGGER refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON notifications_notification
                FOR EACH ROW EXECUTE FUNCTION notifications_refuse();
        """),
    ]
