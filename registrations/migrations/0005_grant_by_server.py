import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("registrations", "0004_lists_of_bytes")]
    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    "grant",
                    "registration",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to="registrations.registration",
                    ),
                ),
            ],
            database_operations=[
                migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS registrations_grant_registration_id_03e4ca7f")
            ],
        ),
    ]
