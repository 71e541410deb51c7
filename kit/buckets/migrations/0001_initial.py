from django.db import migrations, models

import kit.db.fields


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="SharedBucket",
            fields=[
                ("key", kit.db.fields.BytesField(primary_key=True, serialize=False)),
                ("burst_full_at", models.FloatField()),
                ("long_full_at", models.FloatField()),
            ],
        ),
    ]
