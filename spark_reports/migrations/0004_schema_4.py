"""The columns of schema 4 of the lake, and the seeds of pseudonym keys."""

from django.db import migrations, models
from django.db.models import F


def to_microseconds(apps, _editor):
    apps.get_model("spark_reports", "Latency").objects.update(max_us=F("max_us") * 1000)


def to_milliseconds(apps, _editor):
    apps.get_model("spark_reports", "Latency").objects.update(max_us=F("max_us") / 1000)


def usual_days(model_name):
    field = models.PositiveSmallIntegerField(db_default=0, default=0)
    return migrations.AddField(model_name=model_name, name="usual_days", field=field)


class Migration(migrations.Migration):
    dependencies = [("spark_reports", "0003_front_doors")]

    operations = [
        migrations.CreateModel(
            name="PseudonymSeed",
            fields=[
                ("period", models.TextField(primary_key=True, serialize=False)),
                ("last_day", models.DateField(db_index=True)),
                ("seed", models.BinaryField()),
            ],
        ),
        usual_days("anomaly"),
        usual_days("errorrate"),
        usual_days("failuresignature"),
        migrations.AddField(
            model_name="failuresignature",
            name="known_days",
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="tokenlifetime",
            name="is_complete",
            field=models.BooleanField(db_default=True, default=True),
        ),
        migrations.RenameField("latency", "max_ms", "max_us"),
        migrations.RunPython(to_microseconds, to_milliseconds),
    ]
