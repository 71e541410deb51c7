from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pushserver", "0010_waits")]
    operations = [
        migrations.AddField("serverstart", "settings", models.TextField(blank=True, db_default="", default="")),
    ]
