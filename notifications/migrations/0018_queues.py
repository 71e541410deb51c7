from django.db import migrations, models

TYPES = [(1, "APN"), (2, "Firebase")]


class Migration(migrations.Migration):
    """Whatever waits begins in queue 0, from where workers sort it. What was paused or tripped runs again."""

    dependencies = [("notifications", "0017_ended_at")]

    operations = [
        migrations.DeleteModel("Drain"),
        migrations.DeleteModel("GatewayOutage"),
        migrations.RunSQL(
            "DELETE FROM notifications_channel WHERE last_success_at IS NULL", migrations.RunSQL.noop
        ),
        *(
            migrations.RemoveField("channel", name)
            for name in ("state", "reason", "changed_by", "since", "next_probe_at")
        ),
        migrations.AlterField("channel", "last_success_at", models.DateTimeField()),
        migrations.AddField("channel", "judged_from", models.DateTimeField(null=True)),
        migrations.AddField("channel", "deaths_doubted_since", models.DateTimeField(null=True)),
        migrations.CreateModel(
            "Queue",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("gateway", models.TextField()),
                ("token_type", models.PositiveSmallIntegerField(choices=TYPES)),
                ("app_topic", models.TextField(null=True)),
                ("is_proven", models.BooleanField()),
                ("waiting_count", models.PositiveBigIntegerField(db_default=0, default=0)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("gateway", "token_type", "app_topic", "is_proven"),
                        name="one_queue_each",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.CreateModel(
            "Halt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("drained", "Drained"),
                            ("unreachable", "Unreachable"),
                            ("paused", "Paused"),
                            ("tripped", "Tripped"),
                        ]
                    ),
                ),
                ("gateway", models.TextField(blank=True, default="")),
                ("token_type", models.PositiveSmallIntegerField(choices=TYPES, null=True)),
                ("app_topic", models.TextField(blank=True, default="")),
                ("since", models.DateTimeField()),
                ("reason", models.TextField(blank=True)),
                ("by", models.TextField(blank=True)),
                ("next_probe_at", models.DateTimeField(null=True)),
            ],
            options={
                "permissions": [("operate_drain", "Can stop and start delivery as a whole")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("kind", "gateway", "token_type", "app_topic"),
                        name="one_halt_each",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.AddIndex(
            "attempt",
            models.Index(
                condition=models.Q(outcome="dead", repeated_at__isnull=False),
                fields=["token_type", "apn_topic", "repeated_at"],
                name="attempt_died_again",
            ),
        ),
        migrations.AddField("notification", "queue_id", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.RemoveIndex("notification", "notification_due"),
        migrations.AddIndex(
            "notification",
            models.Index(
                condition=models.Q(state__in=["pending", "retrying", "ambiguous"], queue_id__gte=0),
                fields=["queue_id", "next_attempt_at"],
                name="notification_queue",
            ),
        ),
    ]
