from django.contrib.postgres.operations import RemoveIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("xmpp_bridge", "0002_device_to_announce")]
    operations = [RemoveIndexConcurrently("device", "device_registered")]
