from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("buckets", "0001_initial")]
    operations = [
        migrations.RunSQL(
            "ALTER TABLE buckets_sharedbucket SET UNLOGGED", "ALTER TABLE buckets_sharedbucket SET LOGGED"
        ),
    ]
