from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """What of the console all processes have: the tables of the canaries."""

    name = "pushserver.console"
