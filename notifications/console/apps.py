from django.apps import AppConfig


class NotificationsConsoleConfig(AppConfig):
    name = "notifications.console"
    label = "notifications_console"
