from django.db import migrations


class Migration(migrations.Migration):
    """Lists of ciphertext do not compress. Stored as they are, their size is known without reading them."""

    dependencies = [
        ('registrations', '0006_gateways'),
    ]

    operations = [
        migrations.RunSQL(
            'ALTER TABLE registrations_registration ALTER COLUMN allowed_key_list SET STORAGE EXTERNAL',
            'ALTER TABLE registrations_registration ALTER COLUMN allowed_key_list SET STORAGE EXTENDED',
        ),
    ]
