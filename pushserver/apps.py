from django.apps import AppConfig


class PushserverConfig(AppConfig):
    name = "pushserver"
    verbose_name = "Push server"

    def ready(self) -> None:
        from pushserver import checks  # noqa: F401, PLC0415 - registers the system checks, possible once apps are loaded
