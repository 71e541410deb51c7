from django.db import migrations, models


class Migration(migrations.Migration):
    """Changes the catalogue only, however large the table is. Until now every address was a device token for gorush."""

    dependencies = [("registrations", "0005_console_filters")]

    operations = [
        migrations.RenameField("route", "device_token_encrypted", "address_encrypted"),
        migrations.RenameField("route", "device_token_digest", "address_digest"),
        migrations.AddField("route", "gateway", models.TextField(default="gorush"), preserve_default=False),
    ]
