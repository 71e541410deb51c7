"""Envelopes about no proven address step aside while the inbox is behind."""


from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('waku_bridge', '0010_turns'),
    ]

    operations = [
        migrations.AlterField(
            model_name='inboundenvelope',
            name='state',
            field=models.TextField(choices=[('received', 'Received'), ('postponed', 'Postponed'), ('unkeyed', 'Unkeyed'), ('processed', 'Processed'), ('dropped', 'Dropped'), ('failed', 'Failed')], default='received'),
        ),
        migrations.AddIndex(
            model_name='inboundenvelope',
            index=models.Index(condition=models.Q(('state', 'postponed')), fields=['received_at', 'timestamp_ns'], name='envelope_postponed'),
        ),
    ]
