"""The tables of error rules and unknown errors, and the rules of the file in the first."""

import django.core.validators
from django.db import migrations, models

from notifications.gateways.gorush.rules_table import load_seed


def load(apps, schema_editor):
    load_seed(apps.get_model("notifications", "GatewayErrorRule"))


class Migration(migrations.Migration):

    dependencies = [
        ("notifications", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="GatewayErrorRule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("position", models.PositiveIntegerField(db_index=True, help_text="The first rule that matches decides.")),
                ("platform", models.TextField(choices=[("ios", "Ios"), ("android", "Android"), ("any", "Any")])),
                ("match", models.TextField(choices=[("exact", "Exact"), ("prefix", "Prefix"), ("contains", "Contains")], default="contains")),
                ("text", models.TextField(blank=True, help_text="Upper and lower case are the same. Empty, with an exact match: an answer without an error text.")),
                ("outcome", models.TextField(choices=[("dead", "Dead"), ("config", "Config"), ("payload", "Payload"), ("transient", "Transient"), ("ambiguous", "Ambiguous")], verbose_name="class")),
                ("code", models.TextField(help_text="What attempts, logs and reports call it.", validators=[django.core.validators.RegexValidator("\\A[A-Za-z][A-Za-z0-9_]{0,63}\\Z", "Letters, digits and _ only, 64 at most.")])),
                ("is_guarded", models.BooleanField(default=False, help_text="Only for dead: tokens that are fine get this answer too, if we are set up wrong.", verbose_name="guarded")),
                ("retry_base_seconds", models.PositiveIntegerField(default=0, help_text="Where the backoff starts; 0: where it always does.", validators=[django.core.validators.MaxValueValidator(86400)])),
                ("is_enabled", models.BooleanField(default=True, verbose_name="enabled")),
                ("remark", models.TextField(blank=True)),
                ("origin", models.TextField(choices=[("seed", "Seed"), ("operator", "Operator")], default="operator", editable=False)),
                ("seed_key", models.TextField(editable=False, null=True, unique=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
            ],
            options={
                "ordering": ["position", "pk"],
                "constraints": [models.UniqueConstraint(fields=("platform", "match", "text"), name="one_rule_per_error")],
            },
        ),
        migrations.CreateModel(
            name="UnknownGatewayError",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("platform", models.TextField(choices=[("ios", "Ios"), ("android", "Android"), ("any", "Any")])),
                ("signature", models.TextField(blank=True)),
                ("count", models.PositiveBigIntegerField(default=0)),
                ("first_seen_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("platform", "signature"), name="one_count_per_unknown_error")],
            },
        ),
        migrations.RunPython(load, migrations.RunPython.noop),
    ]
