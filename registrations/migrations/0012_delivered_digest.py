from django.db import migrations, models

import kit.db.fields


class Migration(migrations.Migration):
    """Every address is to be proven anew, by the next delivery: nothing is known of the digest that was sent to."""

    dependencies = [("registrations", "0011_front_door_of_devices")]

    operations = [
        migrations.AddField("route", "delivered_digest", kit.db.fields.BytesField(null=True)),
        migrations.AddField(
            "route",
            "is_proven",
            models.GeneratedField(
                db_persist=True,
                expression=models.Case(
                    models.When(delivered_digest=models.F("address_digest"), then=True), default=False
                ),
                output_field=models.BooleanField(),
            ),
        ),
    ]
