from django.db import migrations, models

KEPT = """
    INSERT INTO pushserver_count (figure, begin_at, subject, outcome, code, count)
    SELECT 'requests', begin_at, bridge, '', '', request_count FROM pushserver_bridgeminute
    UNION ALL SELECT 'replies', begin_at, bridge, '', '', reply_count FROM pushserver_bridgeminute
    UNION ALL SELECT 'attempts', begin_at, channel, outcome, code, count FROM pushserver_attemptminute
    UNION ALL SELECT 'ends', begin_at, '', state, '', count FROM pushserver_notificationminute
    UNION ALL SELECT 'hour', begin_at, flow, '', '', count FROM pushserver_traffichour
"""
FIGURES = [(name, name.capitalize()) for name in ("requests", "replies", "attempts", "ends", "hour")]


class Migration(migrations.Migration):
    dependencies = [("pushserver", "0005_fewer_indexes")]
    operations = [
        migrations.CreateModel(
            "Count",
            [
                (
                    "pk",
                    models.CompositePrimaryKey(
                        *("figure", "begin_at", "subject", "outcome", "code"),
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("figure", models.TextField(choices=FIGURES)),
                ("begin_at", models.DateTimeField()),
                ("subject", models.TextField(blank=True, default="")),
                ("outcome", models.TextField(blank=True, default="")),
                ("code", models.TextField(blank=True, default="")),
                ("count", models.PositiveIntegerField()),
            ],
        ),
        migrations.RunSQL(KEPT),
        migrations.DeleteModel("BridgeMinute"),
        migrations.DeleteModel("AttemptMinute"),
        migrations.DeleteModel("NotificationMinute"),
        migrations.DeleteModel("TrafficHour"),
    ]
