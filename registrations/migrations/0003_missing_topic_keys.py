from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('registrations', '0002_failing_clock'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='topickey',
            index=models.Index(condition=models.Q(('key_encrypted__isnull', True)), fields=['id'], name='topic_key_missing'),
        ),
    ]
