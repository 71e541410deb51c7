from django.db import migrations, models


class Migration(migrations.Migration):
    """Changes the catalogue only, however large the tables are."""

    dependencies = [("registrations", "0009_route_pseudonyms")]

    operations = [
        migrations.AddField("route", "front_door", models.TextField(default="waku", db_default="waku")),
        migrations.AddField("registrationevent", "front_door", models.TextField(default="waku", db_default="waku")),
    ]
