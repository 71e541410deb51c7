from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("notifications", "0011_coalescing"),
    ]

    operations = [
        migrations.CreateModel(
            name="GatewayOutage",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("since", models.DateTimeField()),
                ("next_probe_at", models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name="attempt",
            name="repeat_count",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="attempt",
            name="repeated_at",
            field=models.DateTimeField(null=True),
        ),
    ]
