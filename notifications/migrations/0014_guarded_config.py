

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('notifications', '0013_limits'),
    ]

    operations = [
        migrations.AlterField(
            model_name='gatewayerrorrule',
            name='is_guarded',
            field=models.BooleanField(default=False, help_text="Only for dead and config: it may be the token's fault or the set-up's. Strangers' tokens then trip no channel.", verbose_name='guarded'),
        ),
    ]
