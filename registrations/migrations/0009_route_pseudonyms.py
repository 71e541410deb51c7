from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('registrations', '0008_ends'),
    ]

    operations = [
        migrations.AddField(
            model_name='route',
            name='pseudonym',
            field=models.UUIDField(null=True),
        ),
    ]
