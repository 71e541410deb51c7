from django.db import migrations

import kit.db.fields


class Migration(migrations.Migration):
    dependencies = [
        ("notifications", "0009_collapse_id"),
    ]

    operations = [
        migrations.AddField(
            model_name="notificationrequest",
            name="decided",
            field=kit.db.fields.BytesField(null=True),
        ),
        migrations.AddField(
            model_name="notificationrequest",
            name="decided_names",
            field=kit.db.fields.BytesField(null=True),
        ),
    ]
