from django.db import migrations

from kit.db.fields import BytesField, BytesListField

OF_THE_LAST_RUN = """
    UPDATE waku_bridge_canaryrun SET messages = ARRAY(SELECT hash FROM waku_bridge_canaryenvelope)
    WHERE id = (SELECT max(id) FROM waku_bridge_canaryrun)
"""


class Migration(migrations.Migration):
    dependencies = [("waku_bridge", "0012_still_fewer_indexes")]
    operations = [
        migrations.AddField(
            "canaryrun",
            "messages",
            BytesListField(base_field=BytesField(), db_default=[], default=list, size=None),
        ),
        migrations.RunSQL(OF_THE_LAST_RUN),
        migrations.DeleteModel("CanaryEnvelope"),
    ]
