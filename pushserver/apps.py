import gc

from django.apps import AppConfig, apps
from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.signals import post_migrate, pre_migrate

from kit.db.base import MIGRATIONS, set_timeouts
from pushserver.release import BEFORE_0_2, NO_WAY_UP


class PushserverConfig(AppConfig):
    name = "pushserver"
    verbose_name = "Push server"

    def ready(self) -> None:
        from pushserver import checks  # noqa: F401, PLC0415 - registers the system checks, possible once apps are loaded
        from pushserver.roles import seed_roles  # noqa: PLC0415 - as above

        # Django adds the rows of permissions app by app after each migration, so all exist after the last app.
        # It sends these signals for apps with models only.
        first, *_, last = [app for app in apps.get_app_configs() if app.models_module]
        pre_migrate.connect(_before_migrations, sender=first, dispatch_uid="before_migrations")
        post_migrate.connect(seed_roles, sender=last, dispatch_uid="roles")
        gc.enable()  # disabled by `pushserver/__init__.py`


def _before_migrations(**_kwargs: object) -> None:
    """Refuse a database of a version before 0.2.0, and set the timeouts of migrations.

    Migrations may take long, but may not wait for locks, because all later statements would wait behind them.
    """
    if BEFORE_0_2 in MigrationRecorder(connection).applied_migrations():
        raise CommandError(f"The database is {NO_WAY_UP}.")
    set_timeouts(MIGRATIONS)
