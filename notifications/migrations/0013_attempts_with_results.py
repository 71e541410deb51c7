import django.db.models.deletion
from django.db import migrations, models

ENDED = """id, notification_id, number, gateway, token_type, app_topic, started_at, began_at, ended_at, waited_ms,
    latency_ms, outcome, code, error, is_guarded, is_probe, is_counted, late_code"""
OUTCOMES = ["delivered", "dead", "config", "payload", "transient", "ambiguous"]
INDEXES = ("attempt_of_notification", "attempt_channel", "attempt_failed", "attempt_code")


def empty() -> models.TextField:
    return models.TextField(blank=True, default="", db_default="")


class Migration(migrations.Migration):
    """Write an attempt once, with its result. Those under way move to the notifications that they are of.

    A process of the release before cannot write the view, and waits until it is replaced, as if a table were missing.
    """

    dependencies = [("notifications", "0012_open_notifications")]
    operations = [
        migrations.AddField("opennotification", "attempt_id", models.BigIntegerField(null=True)),
        migrations.AddField("opennotification", "claimed_at", models.DateTimeField(null=True)),
        migrations.AddField("opennotification", "gateway", empty()),
        migrations.AddField(
            "opennotification", "token_type", models.PositiveSmallIntegerField(default=0, db_default=0)
        ),
        migrations.AddField("opennotification", "app_topic", empty()),
        migrations.AddField("opennotification", "is_probe", models.BooleanField(default=False, db_default=False)),
        migrations.AddField("opennotification", "late_code", empty()),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                *(migrations.RemoveIndex("attempt", name) for name in INDEXES),
                migrations.AlterModelTable("attempt", "notifications_attempt"),
                migrations.AlterModelOptions("attempt", {"managed": False}),
                migrations.CreateModel(
                    "EndedAttempt",
                    [
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        ("number", models.PositiveIntegerField()),
                        ("gateway", models.TextField()),
                        ("token_type", models.PositiveSmallIntegerField()),
                        ("app_topic", models.TextField(blank=True)),
                        ("started_at", models.DateTimeField()),
                        ("began_at", models.DateTimeField(null=True)),
                        ("ended_at", models.DateTimeField(null=True)),
                        ("waited_ms", models.IntegerField(null=True)),
                        ("latency_ms", models.PositiveIntegerField(null=True)),
                        (
                            "outcome",
                            models.TextField(choices=[(each, each.capitalize()) for each in OUTCOMES], null=True),
                        ),
                        ("code", models.TextField(blank=True)),
                        ("error", empty()),
                        ("is_guarded", models.BooleanField(default=False)),
                        ("is_probe", models.BooleanField(default=False, db_default=False)),
                        ("is_counted", models.BooleanField(default=False, db_default=False)),
                        ("late_code", empty()),
                        (
                            "notification",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="%(class)ss",
                                to="notifications.notification",
                            ),
                        ),
                    ],
                    {
                        "default_permissions": (),
                        "indexes": [
                            models.Index(fields=["started_at"], name="attempt_started"),
                            models.Index(fields=["notification", "number"], name="attempt_of_notification"),
                            models.Index(fields=["token_type", "app_topic", "started_at"], name="attempt_channel"),
                            models.Index(
                                condition=models.Q(outcome__in=OUTCOMES[1:]),
                                fields=["outcome", "id"],
                                name="attempt_failed",
                            ),
                            models.Index(
                                condition=models.Q(code="", _negated=True), fields=["code", "id"], name="attempt_code"
                            ),
                        ],
                    },
                ),
            ],
            database_operations=[
                migrations.RunSQL(f"""
                    DO $$ DECLARE part text; BEGIN
                        FOR part IN SELECT inhrelid::regclass::text FROM pg_inherits
                                WHERE inhparent = 'notifications_attempt'::regclass LOOP
                            EXECUTE format('ALTER TABLE %s RENAME TO %s', part, replace(part, '_attempt_', '_endedattempt_'));
                        END LOOP;
                    END $$;
                    ALTER TABLE notifications_attempt RENAME TO notifications_endedattempt;
                    ALTER SEQUENCE notifications_attempt_id_seq RENAME TO notifications_endedattempt_id_seq;
                    WITH under_way AS (
                        DELETE FROM notifications_endedattempt AS attempt USING notifications_opennotification AS n
                        WHERE attempt.notification_id = n.id AND attempt.number = n.attempt_count
                            AND n.state = 'in_flight' AND attempt.outcome IS NULL
                        RETURNING attempt.*
                    )
                    UPDATE notifications_opennotification AS n
                    SET attempt_id = under_way.id, claimed_at = started_at, gateway = under_way.gateway,
                        token_type = under_way.token_type, app_topic = under_way.app_topic,
                        is_probe = under_way.is_probe, late_code = under_way.late_code
                    FROM under_way WHERE n.id = notification_id;
                    CREATE VIEW notifications_attempt AS
                        SELECT {ENDED} FROM notifications_endedattempt
                        UNION ALL SELECT attempt_id, id, attempt_count, gateway, token_type, app_topic, claimed_at,
                            NULL::timestamptz, NULL::timestamptz, NULL::integer, NULL::integer, NULL::text, ''::text,
                            ''::text, FALSE, is_probe, FALSE, late_code
                        FROM notifications_opennotification WHERE state = 'in_flight';
                    CREATE TRIGGER refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON notifications_attempt
                        FOR EACH ROW EXECUTE FUNCTION notifications_refuse();
                """),
            ],
        ),
    ]
