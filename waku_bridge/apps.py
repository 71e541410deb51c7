from django.apps import AppConfig


class WakuBridgeConfig(AppConfig):
    name = "waku_bridge"
    verbose_name = "Waku"

    def ready(self) -> None:
        from waku_bridge import front_door  # noqa: PLC0415 - possible once apps are loaded

        front_door.register()
