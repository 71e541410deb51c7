from typing import Any

from django.db import migrations, models

CAUSES = ("node", "bridge", "worker", "gateway", "reply", "component", "xmpp_server")


def keep_grants(apps: Any, _editor: Any) -> None:
    """Let all who could view the runs of a bridge view those of both.

    The content types of the two former tables stay, because entries of the log refer to them.
    """
    ContentType, Permission = apps.get_model("contenttypes", "ContentType"), apps.get_model("auth", "Permission")  # noqa: N806
    former = Permission.objects.filter(
        content_type__app_label__in=["waku_bridge", "xmpp_bridge"], content_type__model="canaryrun"
    )
    if views := list(former.filter(codename="view_canaryrun")):
        kind, _ = ContentType.objects.get_or_create(app_label="pushserver", model="canaryrun")
        own, _ = Permission.objects.get_or_create(
            content_type=kind, codename="view_canaryrun", defaults={"name": "Can view canary run"}
        )
        own.group_set.add(*apps.get_model("auth", "Group").objects.filter(permissions__in=views))
        own.user_set.add(*apps.get_model("auth", "User").objects.filter(user_permissions__in=views))
        former.delete()


class Migration(migrations.Migration):
    """The two tables of the bridges are copied when they are removed, so that no run is lost."""

    dependencies = [
        ("pushserver", "0008_fewer_indexes"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]
    operations = [
        migrations.CreateModel(
            "CanaryRun",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("network", models.TextField(choices=[("waku", "Waku"), ("xmpp", "XMPP")])),
                (
                    "state",
                    models.TextField(
                        choices=[
                            *(("running", "Running"), ("passed", "Passed")),
                            *(("broken", "Broken"), ("interrupted", "Interrupted")),
                        ],
                        default="running",
                    ),
                ),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(null=True)),
                ("broken_link", models.TextField(blank=True)),
                ("cause", models.TextField(blank=True, choices=[(cause, cause) for cause in CAUSES])),
                ("detail", models.TextField(blank=True)),
                ("times", models.JSONField(default=dict)),
                ("work_ms", models.PositiveIntegerField(null=True)),
                ("is_dry_run", models.BooleanField()),
                ("pseudonym", models.UUIDField(null=True)),
                ("device", models.UUIDField(null=True)),
            ],
            options={
                "default_permissions": ("view",),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "running")), fields=("network",), name="one_run_per_canary"
                    )
                ],
            },
        ),
        migrations.RunPython(keep_grants, migrations.RunPython.noop),
    ]
