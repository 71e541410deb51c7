from django.contrib.postgres.indexes import BrinIndex
from django.db import migrations, models

import kit.db.fields


class Migration(migrations.Migration):
    dependencies = [("notifications", "0019_expiring")]

    operations = [
        migrations.CreateModel(
            name="RequestDigest",
            fields=[
                ("digest", kit.db.fields.BytesField(primary_key=True, serialize=False)),
                ("received_at", models.DateTimeField()),
            ],
            options={"indexes": [BrinIndex(fields=["received_at"], name="request_digest_received")]},
        ),
    ]
