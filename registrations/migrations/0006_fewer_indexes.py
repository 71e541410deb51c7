from django.contrib.postgres.operations import RemoveIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("registrations", "0005_grant_by_server")]
    operations = [RemoveIndexConcurrently("registration", "registration_enabled")]
