from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('spark_reports', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='publishedday',
            name='code_version',
            field=models.TextField(blank=True, db_default='', default=''),
        ),
        migrations.AddField(
            model_name='publishedday',
            name='facts_digest',
            field=models.TextField(blank=True, db_default='', default=''),
        ),
        migrations.AddField(
            model_name='publishedday',
            name='is_made_up',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='reportrun',
            name='is_made_up',
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
