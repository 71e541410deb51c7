"""The people of `manage.py demo`, who are registered by the program that plays them. All of them are made up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.conf import settings


@dataclass(frozen=True, slots=True)
class Person:
    """One person with one phone. ``fault`` names the fault that is staged, and is empty where nothing is wrong."""

    name: str
    device: str
    purpose: str
    fault: str
    public_key: bytes  # compressed, 33 bytes
    chat_key: str


_registered: list[Callable[[], Sequence[Person]]] = []


def register(people: Callable[[], Sequence[Person]]) -> None:
    """Have pages show these people while the server is a demonstration."""
    _registered[:] = [people]


def people() -> list[Person]:
    """Return the people to show, and nobody where there is no demonstration."""
    return [person for each in _registered for person in each()] if settings.DEMONSTRATION else []
