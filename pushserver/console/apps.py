from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """What of the console all processes have: the table of the canaries' runs."""

    name = "pushserver.console"
