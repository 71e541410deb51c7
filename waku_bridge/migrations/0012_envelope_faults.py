"""Envelopes that failed say what by: one row for each fault, however often it comes."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('waku_bridge', '0011_postponed_envelopes'),
    ]

    operations = [
        migrations.CreateModel(
            name='EnvelopeFault',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('error', models.TextField()),
                ('place', models.TextField(blank=True)),
                ('line', models.PositiveIntegerField(default=0)),
                ('count', models.PositiveBigIntegerField(default=0)),
                ('first_seen_at', models.DateTimeField()),
                ('last_seen_at', models.DateTimeField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('error', 'place'), name='one_fault_per_place')],
            },
        ),
        migrations.AddField(
            model_name='inboundenvelope',
            name='fault',
            field=models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, to='waku_bridge.envelopefault'),
        ),
        # What failed before is a fault too, though its place is not known.
        migrations.RunSQL(
            """
            INSERT INTO waku_bridge_envelopefault (error, place, line, count, first_seen_at, last_seen_at)
            SELECT reason, '', 0, count(*), min(received_at), max(coalesce(processed_at, received_at))
            FROM waku_bridge_inboundenvelope WHERE state = 'failed' GROUP BY reason;
            UPDATE waku_bridge_inboundenvelope AS envelope SET fault_id = fault.id
            FROM waku_bridge_envelopefault AS fault WHERE envelope.state = 'failed' AND envelope.reason = fault.error
            """,
            migrations.RunSQL.noop,
        ),
    ]
