from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("spark_reports", "0006_columns_from_tables")]

    operations = [
        migrations.AddField(
            model_name="publishedday",
            name="schema_version",
            field=models.PositiveSmallIntegerField(db_default=5),
        ),
    ]
