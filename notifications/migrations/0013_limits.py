from django.db import migrations, models

import kit.db.fields


class Migration(migrations.Migration):
    dependencies = [
        ("notifications", "0012_outages"),
    ]

    operations = [
        migrations.CreateModel(
            name="Sender",
            fields=[
                ("digest", kit.db.fields.BytesField(primary_key=True, serialize=False)),
                ("beyond_count", models.PositiveBigIntegerField(default=0)),
                ("first_beyond_at", models.DateTimeField(null=True)),
                ("last_beyond_at", models.DateTimeField(null=True)),
                ("muted_at", models.DateTimeField(null=True)),
                ("muted_by", models.TextField(blank=True)),
                ("muted_why", models.TextField(blank=True)),
            ],
            options={
                "permissions": [("operate_sender", "Can mute senders, and unmute them")],
                "indexes": [
                    models.Index(
                        fields=["digest"], condition=models.Q(muted_at__isnull=False), name="sender_muted"
                    ),
                    models.Index(fields=["last_beyond_at"], name="sender_beyond"),
                ],
            },
        ),
        migrations.AddField(
            model_name="notification",
            name="is_wake_up",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
