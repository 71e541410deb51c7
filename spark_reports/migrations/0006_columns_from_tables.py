from django.db import migrations, models

TEXTS = {
    "app_topic": ("anomaly", "errorrate", "tokenchurn", "tokenlifetime"),
    "code": ("errorrate",),
    "signature": ("failuresignature",),
}


class Migration(migrations.Migration):
    """Changes no table: the columns of reports are made from `jobs.tables`, which does not say which texts are empty."""

    dependencies = [("spark_reports", "0005_fewer_indexes")]
    operations = [
        migrations.AlterField(report, column, models.TextField()) for column, reports in TEXTS.items() for report in reports
    ]
