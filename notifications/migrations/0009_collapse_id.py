from django.db import migrations, models

import kit.db.fields

# Only what is still to be sent needs it.
FILL = """
    UPDATE notifications_notification SET collapse_id = substring(dedup_key FOR 16)
    WHERE state IN ('pending', 'retrying', 'ambiguous', 'in_flight') AND dedup_key IS NOT NULL
"""


class Migration(migrations.Migration):
    dependencies = [
        ("notifications", "0008_front_doors"),
    ]

    operations = [
        migrations.AddField(
            model_name="notification",
            name="collapse_id",
            field=kit.db.fields.BytesField(null=True),
        ),
        migrations.AlterField(
            model_name="notification",
            name="attempt_count",
            field=models.PositiveIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name="attempt",
            name="number",
            field=models.PositiveIntegerField(),
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
