from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0015_reports_in_requests")]
    operations = [
        migrations.AlterField(
            "gatewayerrorrule",
            "position",
            models.PositiveIntegerField(help_text="The first rule that matches decides."),
        ),
        migrations.AlterField("unknowngatewayerror", "last_seen_at", models.DateTimeField()),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint("endednotification", "one_notification_under_way"),
                migrations.AddConstraint(
                    "endednotification",
                    models.UniqueConstraint(
                        condition=models.Q(("dedup_key__isnull", False)),
                        fields=("dedup_key", "ended_on"),
                        name="one_ended_notification",
                    ),
                ),
            ],
            database_operations=[
                migrations.RunSQL("ALTER INDEX one_notification_under_way RENAME TO one_ended_notification")
            ],
        ),
    ]
