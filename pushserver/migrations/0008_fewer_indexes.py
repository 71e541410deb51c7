from django.db import migrations

# Of Django's tables, the index of a column with which a unique key or `log_entry_subject` begins.
TWICE = (
    *("auth_group_permissions_group_id_b120cbf9", "auth_permission_content_type_id_2f476e4b"),
    *("auth_user_groups_user_id_6a12ed8b", "auth_user_user_permissions_user_id_a95ead1b"),
    "django_admin_log_content_type_id_c4bce8eb",
)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("pushserver", "0007_failed_logins")]
    operations = [
        migrations.RemoveIndex("alert", "alert_unsent"),
        *(migrations.RunSQL(f"DROP INDEX CONCURRENTLY IF EXISTS {name}") for name in TWICE),
    ]
