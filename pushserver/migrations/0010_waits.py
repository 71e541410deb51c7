from django.db import migrations, models

FIGURES = ("requests", "replies", "attempts", "ends", "waits", "waiting", "hour", "hour ends", "hour waits", "hour waiting")


class Migration(migrations.Migration):
    dependencies = [("pushserver", "0009_canary_runs")]
    operations = [
        migrations.AlterField(
            "count", "figure", models.TextField(choices=[(name, name.title()) for name in FIGURES])
        ),
    ]
