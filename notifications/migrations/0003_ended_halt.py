from django.db import migrations, models

import registrations.messages


class Migration(migrations.Migration):
    dependencies = [("notifications", "0002_attempt_is_probe")]
    operations = [
        migrations.CreateModel(
            name="EndedHalt",
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
                ("token_type", models.PositiveSmallIntegerField(choices=registrations.messages.token_type_choices, null=True)),
                ("app_topic", models.TextField(blank=True, default="")),
                ("since", models.DateTimeField()),
                ("reason", models.TextField(blank=True)),
                ("by", models.TextField(blank=True)),
                ("ended_at", models.DateTimeField(db_index=True)),
                ("ended_by", models.TextField(blank=True)),
            ],
            options={"abstract": False},
        ),
    ]
