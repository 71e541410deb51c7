from django.apps import AppConfig


class RegistrationsConsoleConfig(AppConfig):
    name = "registrations.console"
    label = "registrations_console"
