from django.apps import AppConfig


class WakuBridgeConfig(AppConfig):
    name = "waku_bridge"
    verbose_name = "Waku"
