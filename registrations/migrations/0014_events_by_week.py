from django.db import migrations

from kit.db.partitions import PartitionByDay
from registrations.retention import EVENTS


class Migration(migrations.Migration):
    dependencies = [("registrations", "0013_tombstones")]

    operations = [PartitionByDay(EVENTS)]
