from django.db import migrations


class Migration(migrations.Migration):
    """Only devices of XMPP have routes with a pseudonym of their own. Of those that ended, nothing tells any more."""

    dependencies = [("registrations", "0010_front_doors")]

    operations = [
        migrations.RunSQL(
            "UPDATE registrations_route SET front_door = 'xmpp' WHERE pseudonym IS NOT NULL", migrations.RunSQL.noop
        ),
        migrations.RunSQL(
            "UPDATE registrations_registrationevent AS event SET front_door = 'xmpp' FROM registrations_route AS route"
            " WHERE route.pseudonym = event.pseudonym",
            migrations.RunSQL.noop,
        ),
    ]
