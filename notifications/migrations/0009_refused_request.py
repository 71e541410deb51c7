import django.contrib.postgres.indexes
from django.db import migrations, models

import kit.db.fields
from kit.db.operations import PartitionByDay
from notifications.retention import REFUSED


class Migration(migrations.Migration):
    dependencies = [("notifications", "0008_counted_failures")]
    operations = [
        migrations.CreateModel(
            name="RefusedRequest",
            fields=[
                ("digest", kit.db.fields.BytesField(primary_key=True, serialize=False)),
                ("received_at", models.DateTimeField()),
                ("decided", kit.db.fields.BytesField()),
                ("bridge", models.TextField()),
            ],
            options={
                "indexes": [
                    django.contrib.postgres.indexes.BrinIndex(fields=["received_at"], name="refused_request_received")
                ],
            },
        ),
        PartitionByDay(REFUSED),
    ]
