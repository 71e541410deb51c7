import kit.db.fields
from django.db import migrations, models

# Nobody asked the stores about what was published before, and it cannot be published again: its bytes are gone.
CLOSE = "UPDATE waku_bridge_outboundreply SET state = 'unconfirmed' WHERE state = 'published'"
OPEN = "UPDATE waku_bridge_outboundreply SET state = 'published' WHERE state IN ('confirmed', 'unconfirmed')"


class Migration(migrations.Migration):

    dependencies = [
        ('waku_bridge', '0005_operating'),
    ]

    operations = [
        migrations.AddField(
            model_name='outboundreply',
            name='message_hash',
            field=kit.db.fields.BytesField(null=True),
        ),
        migrations.AddField(
            model_name='outboundreply',
            name='repeat_count',
            field=models.PositiveSmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='outboundreply',
            name='confirmed_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AlterField(
            model_name='outboundreply',
            name='state',
            field=models.TextField(choices=[('pending', 'Pending'), ('published', 'Published'), ('confirmed', 'Confirmed'), ('unconfirmed', 'Unconfirmed'), ('abandoned', 'Abandoned')], default='pending'),
        ),
        migrations.RunSQL(CLOSE, OPEN),
        migrations.AddIndex(
            model_name='outboundreply',
            index=models.Index(condition=models.Q(('state', 'published')), fields=['next_attempt_at'], name='reply_published'),
        ),
        migrations.AddIndex(
            model_name='outboundreply',
            index=models.Index(condition=models.Q(('state__in', ['unconfirmed', 'abandoned'])), fields=['id'], name='reply_given_up'),
        ),
    ]
