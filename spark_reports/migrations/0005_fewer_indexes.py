import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("spark_reports", "0004_mailed_at")]
    operations = [
        migrations.AlterField("pseudonymseed", "last_day", models.DateField()),
        migrations.AlterField(
            "publishedday",
            "run",
            models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                to="spark_reports.reportrun",
            ),
        ),
        migrations.AlterField("reportrun", "started_at", models.DateTimeField()),
        migrations.AlterField("reportrun", "to_day", models.DateField()),
    ]
