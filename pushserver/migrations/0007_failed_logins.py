from django.db import migrations, models

WITHOUT_AXES = """
    DROP TABLE IF EXISTS axes_accessattemptexpiration, axes_accessattempt, axes_accesslog, axes_accessfailurelog;
    DELETE FROM auth_group_permissions WHERE permission_id IN (%(permissions)s);
    DELETE FROM auth_user_user_permissions WHERE permission_id IN (%(permissions)s);
    DELETE FROM auth_permission WHERE id IN (%(permissions)s);
"""
PERMISSIONS = """
    SELECT auth_permission.id FROM auth_permission JOIN django_content_type AS kind ON kind.id = content_type_id
    WHERE app_label = 'axes'
"""


class Migration(migrations.Migration):
    """Count failed logins in a table of ours instead of those of django-axes. Who is locked out now is not any more."""

    dependencies = [("pushserver", "0006_one_table_of_counts")]
    operations = [
        migrations.CreateModel(
            "FailedLogin",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("username", models.TextField()),
                ("network", models.TextField()),
                ("count", models.PositiveIntegerField()),
                ("last_at", models.DateTimeField()),
            ],
            {
                "constraints": [
                    models.UniqueConstraint(fields=("username", "network"), name="one_count_per_name_and_network")
                ],
            },
        ),
        migrations.RunSQL(WITHOUT_AXES % {"permissions": PERMISSIONS}),
    ]
