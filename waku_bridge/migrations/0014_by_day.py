"""Envelopes and replies are kept by the day on which they ended, and what is under way apart from them.

Hashes of envelopes get a table of their own, as no unique key of a partitioned table can do without its day.
"""

import datetime

from django.db import migrations, models

import kit.db.fields
from kit.db.partitions import PartitionByDay
from waku_bridge.retention import ENVELOPES, HASHES, REPLIES

UNDER_WAY = datetime.date(9999, 12, 31)
_UNTIL = {"default": UNDER_WAY, "db_default": UNDER_WAY}


def _ended_unless(*states: str) -> models.Q:
    is_under_way = models.Q(ended_on=UNDER_WAY)
    return models.Q(is_under_way, state__in=states) | ~models.Q(is_under_way | models.Q(state__in=states))


ENVELOPE_ENDED = models.CheckConstraint(
    condition=_ended_unless("received", "postponed", "unkeyed"), name="envelope_ended"
)
ONE_REPLY = models.UniqueConstraint(fields=["envelope_hash", "part", "ended_on"], name="one_reply_per_envelope")
REPLY_ENDED = models.CheckConstraint(condition=_ended_unless("pending", "published"), name="reply_ended")


class Migration(migrations.Migration):
    dependencies = [("waku_bridge", "0013_envelope_fault_index")]

    operations = [
        migrations.AddField("inboundenvelope", "ended_on", models.DateField(**_UNTIL)),
        migrations.AddField("outboundreply", "ended_on", models.DateField(**_UNTIL)),
        migrations.RunSQL(
            """
            UPDATE waku_bridge_inboundenvelope
            SET ended_on = (coalesce(processed_at, received_at) AT TIME ZONE 'UTC')::date
            WHERE state NOT IN ('received', 'postponed', 'unkeyed');
            UPDATE waku_bridge_outboundreply
            SET ended_on = (coalesce(confirmed_at, published_at, created_at) AT TIME ZONE 'UTC')::date
            WHERE state NOT IN ('pending', 'published');
            """
        ),
        migrations.CreateModel(
            name="EnvelopeHash",
            fields=[
                ("hash", kit.db.fields.BytesField(primary_key=True, serialize=False)),
                ("sent_on", models.DateField()),
            ],
        ),
        migrations.RunSQL(
            """
            INSERT INTO waku_bridge_envelopehash (hash, sent_on)
            SELECT hash, '1970-01-01'::date + (timestamp_ns / 86400000000000)::integer FROM waku_bridge_inboundenvelope
            """
        ),
        migrations.RemoveConstraint("outboundreply", "one_reply_per_envelope"),
        migrations.AddConstraint("inboundenvelope", ENVELOPE_ENDED),
        migrations.AddConstraint("outboundreply", REPLY_ENDED),
        PartitionByDay(HASHES),
        PartitionByDay(ENVELOPES),
        PartitionByDay(REPLIES),
        migrations.AddConstraint("outboundreply", ONE_REPLY),
    ]
