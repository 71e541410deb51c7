"""Rows are the queue: nothing notes when a row was put into another one."""

from django.db import migrations, models

# Requests that wait during the upgrade: their address now has the shard, too.
COMPLETE_ADDRESSES = """
    UPDATE notifications_notificationrequest AS request
    SET reply_address = request.reply_address || convert_to(envelope.pubsub_topic, 'UTF8')
    FROM waku_bridge_inboundenvelope AS envelope
    WHERE envelope.hash = request.source_key AND request.state = 'waiting' AND length(request.reply_address) = 33
"""


class Migration(migrations.Migration):
    dependencies = [("waku_bridge", "0009_windows_of_the_past_only"), ("notifications", "0008_front_doors")]

    operations = [
        migrations.RemoveIndex("inboundenvelope", "envelope_waiting"),
        migrations.RemoveField("inboundenvelope", "enqueued_at"),
        migrations.RemoveField("outboundreply", "enqueued_at"),
        migrations.AddIndex(
            "inboundenvelope",
            models.Index(
                condition=models.Q(("state", "received")), fields=["received_at", "timestamp_ns"], name="envelope_waiting"
            ),
        ),
        migrations.RunSQL(COMPLETE_ADDRESSES, migrations.RunSQL.noop),
        migrations.RunSQL(
            """
            ALTER TABLE waku_bridge_inboundenvelope SET (fillfactor = 80);
            ALTER TABLE waku_bridge_outboundreply SET (fillfactor = 80);
            """,
            migrations.RunSQL.noop,
        ),
    ]
