from django.db import migrations, models

from kit.db.operations import AddIndexAnew


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("registrations", "0002_registration_is_forgettable")]
    operations = [
        AddIndexAnew(
            "registration",
            models.Index(
                fields=["updated_at"], condition=models.Q(is_forgettable=True), name="registration_forgettable"
            ),
        ),
        AddIndexAnew(
            "route",
            models.Index(
                "bridge",
                "state",
                models.Func("id", function="hashint8", output_field=models.IntegerField()),
                condition=models.Q(state="disabled") | models.Q(delivered_digest=None),
                include=["id", "created_at"],
                name="route_may_go",
            ),
        ),
        AddIndexAnew(
            "route",
            models.Index(
                fields=["delivered_digest"], condition=models.Q(delivered_digest__isnull=False), name="route_delivered"
            ),
        ),
    ]
