import datetime

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("spark_reports", "0002_lineage")]

    operations = [
        migrations.AddField(
            model_name="publishedday",
            name="renewed_at",
            field=models.DateTimeField(db_default=datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)),
        ),
    ]
