from django.apps import AppConfig


class ExpiryConfig(AppConfig):
    name = "kit.expiry"
