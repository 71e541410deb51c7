

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('pushserver', '0002_api_tokens'),
    ]

    operations = [
        migrations.CreateModel(
            name='TrafficMinute',
            fields=[
                ('begin_at', models.DateTimeField(primary_key=True, serialize=False)),
                ('counted_at', models.DateTimeField()),
                ('request_count', models.PositiveIntegerField()),
                ('reply_count', models.PositiveIntegerField()),
                ('dispatch_p50_ms', models.PositiveIntegerField(null=True)),
                ('dispatch_p95_ms', models.PositiveIntegerField(null=True)),
                ('reply_p50_ms', models.PositiveIntegerField(null=True)),
                ('reply_p95_ms', models.PositiveIntegerField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='AttemptMinute',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('begin_at', models.DateTimeField()),
                ('outcome', models.TextField()),
                ('code', models.TextField(blank=True)),
                ('count', models.PositiveIntegerField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('begin_at', 'outcome', 'code'), name='one_count_per_minute_and_code')],
            },
        ),
    ]
