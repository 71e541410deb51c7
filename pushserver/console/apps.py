from django.apps import AppConfig

from kit.db.base import table


class ConsoleConfig(AppConfig):
    """What of the console all processes have: the runs of the canaries, which reports leave out."""

    name = "pushserver.console"

    def ready(self) -> None:
        from notifications import tasks  # noqa: PLC0415 - possible once apps are loaded
        from pushserver.console.models import CanaryRun  # noqa: PLC0415 - as above

        tasks.CANARY_PSEUDONYMS.append(f"SELECT pseudonym FROM {table(CanaryRun)} WHERE pseudonym IS NOT NULL")
        tasks.CANARY_INSTALLATIONS.append(f"SELECT device::text FROM {table(CanaryRun)} WHERE device IS NOT NULL")
