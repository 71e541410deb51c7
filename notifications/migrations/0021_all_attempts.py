from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("notifications", "0020_request_digests")]

    operations = [
        migrations.RemoveIndex(model_name="attempt", name="attempt_died_again"),
        migrations.RemoveField(model_name="attempt", name="repeat_count"),
        migrations.RemoveField(model_name="attempt", name="repeated_at"),
    ]
