from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate, pre_migrate

from kit.db.patience import MIGRATIONS, set_patience


class PushserverConfig(AppConfig):
    name = "pushserver"
    verbose_name = "Push server"

    def ready(self) -> None:
        from pushserver import checks  # noqa: F401, PLC0415 - registers the system checks, possible once apps are loaded
        from pushserver.roles import seed_roles  # noqa: PLC0415 - as above

        # Permissions are rows, made app by app after each migration: with the last app they are all there.
        first, *_, last = apps.get_app_configs()
        pre_migrate.connect(_be_patient, sender=first, dispatch_uid="patience")
        post_migrate.connect(seed_roles, sender=last, dispatch_uid="roles")


def _be_patient(**_kwargs: object) -> None:
    """Let migrations take their time, but not let them wait for locks with everybody behind them."""
    set_patience(MIGRATIONS)
