from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('waku_bridge', '0002_reading_the_store'),
    ]

    operations = [
        migrations.AlterField(
            model_name='inboundenvelope',
            name='state',
            field=models.TextField(choices=[('received', 'Received'), ('unkeyed', 'Unkeyed'), ('processed', 'Processed'), ('dropped', 'Dropped'), ('failed', 'Failed')], default='received'),
        ),
        migrations.AddIndex(
            model_name='inboundenvelope',
            index=models.Index(condition=models.Q(('state', 'unkeyed')), fields=['received_at'], name='envelope_unkeyed'),
        ),
    ]
