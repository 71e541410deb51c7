

import django.contrib.postgres.indexes
import kit.db.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('notifications', '0006_halt_probed_route'),
    ]

    operations = [
        migrations.AddField(
            model_name='notification',
            name='shortened_by',
            field=models.TextField(blank=True, db_default='', default=''),
        ),
        migrations.CreateModel(
            name='BeyondLimit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('recipient', kit.db.fields.BytesField()),
                ('installation_id', models.TextField(blank=True)),
                ('begin_at', models.DateTimeField()),
                ('effect', models.TextField(choices=[('merged', 'Merged'), ('shortened', 'Shortened'), ('refused', 'Refused')])),
                ('push_limit', models.TextField()),
                ('session', models.IntegerField()),
                ('count', models.PositiveIntegerField()),
            ],
            options={
                'indexes': [django.contrib.postgres.indexes.BrinIndex(fields=['begin_at'], name='beyond_limit_begin')],
                'constraints': [models.UniqueConstraint(fields=('recipient', 'installation_id', 'begin_at', 'effect', 'push_limit', 'session'), name='one_count_beyond_a_limit')],
            },
        ),
    ]
