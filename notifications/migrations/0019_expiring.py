from datetime import UTC, datetime

from django.db import migrations, models


class Migration(migrations.Migration):
    """What expires is found by its own index, also behind a halt; and what waits is counted by the worker on duty."""

    dependencies = [("notifications", "0018_queues")]

    operations = [
        migrations.AddField("queue", "counted_at", models.DateTimeField(null=True)),
        migrations.AddIndex(
            "notification",
            models.Index(
                condition=models.Q(
                    state__in=["pending", "retrying", "ambiguous"],
                    expires_at__gt=datetime(2000, 1, 1, tzinfo=UTC),
                ),
                fields=["expires_at"],
                name="notification_expiring",
            ),
        ),
    ]
