from collections.abc import Sequence

from django.apps import AppConfig

from pushserver import demonstration


class EmbeddedConfig(AppConfig):
    name = "embedded"
    verbose_name = "Embedded servers"

    def ready(self) -> None:
        """Register the people of the demonstration, so that the console can show them."""
        demonstration.register(_people)


def _people() -> Sequence[demonstration.Person]:
    from embedded.demo.people import shown  # noqa: PLC0415 - processes that show no page need no clients

    return shown()
