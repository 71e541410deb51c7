"""Envelopes of strangers step aside while more comes than can be worked off."""


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
            index=models.Index(condition=models.Q(('state', 'postponed')), fields=['received_at'], name='envelope_postponed'),
        ),
    ]
