from django.contrib.postgres.indexes import BrinIndex
from django.db import migrations, models

import kit.db.fields

EFFECTS = [(name, name.capitalize()) for name in ("merged", "shortened", "refused")]
OF_HOUR = ("begin_at", "bridge", "verdict", "session")
BEYOND = ("recipient", "installation_id", "begin_at", "effect", "push_limit", "session")


def key(*names: str) -> models.CompositePrimaryKey:
    return models.CompositePrimaryKey(*names, blank=True, editable=False, primary_key=True, serialize=False)


class Migration(migrations.Migration):
    """Counts have what they count as their primary key, and no id."""

    dependencies = [("notifications", "0020_decided_without_id")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.DeleteModel("RefusedHour"),
                migrations.DeleteModel("BeyondLimit"),
                migrations.CreateModel(
                    "RefusedHour",
                    [
                        ("pk", key(*OF_HOUR)),
                        ("begin_at", models.DateTimeField()),
                        ("bridge", models.TextField()),
                        ("verdict", models.SmallIntegerField()),
                        ("session", models.IntegerField()),
                        ("count", models.PositiveIntegerField()),
                    ],
                ),
                migrations.CreateModel(
                    "BeyondLimit",
                    [
                        ("pk", key(*BEYOND)),
                        ("recipient", kit.db.fields.BytesField()),
                        ("installation_id", models.TextField(blank=True)),
                        ("begin_at", models.DateTimeField()),
                        ("effect", models.TextField(choices=EFFECTS)),
                        ("push_limit", models.TextField()),
                        ("session", models.IntegerField()),
                        ("count", models.PositiveIntegerField()),
                    ],
                    {"indexes": [BrinIndex(fields=["begin_at"], name="beyond_limit_begin")]},
                ),
            ],
            database_operations=[
                migrations.RunSQL(f"""
                    ALTER TABLE notifications_refusedhour DROP CONSTRAINT one_count_of_an_hour, DROP COLUMN id,
                        ADD PRIMARY KEY ({", ".join(OF_HOUR)});
                    ALTER TABLE notifications_beyondlimit DROP CONSTRAINT one_count_beyond_a_limit, DROP COLUMN id,
                        ADD PRIMARY KEY ({", ".join(BEYOND)});
                """)
            ],
        ),
    ]
