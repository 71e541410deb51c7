from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.apps import AppConfig

if TYPE_CHECKING:
    from embedded.demo.people import Person


class EmbeddedConfig(AppConfig):
    name = "embedded"
    verbose_name = "Embedded servers"

    def people(self) -> "Sequence[Person]":
        """Return the people of the demonstration, which the console shows while it runs."""
        from embedded.demo.people import shown  # noqa: PLC0415 - processes that show no page need no clients

        return shown()
