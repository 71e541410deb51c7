"""Made-up people of `manage.py demo`, for pages of the console. The program that plays them registers them here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.conf import settings


@dataclass(frozen=True, slots=True)
class Person:
    """One person with one phone. ``fault`` names the staged fault, and is empty without one."""

    name: str
    device: str
    purpose: str
    fault: str
    public_key: bytes  # compressed, 33 bytes
    chat_key: str


_registered: list[Callable[[], Sequence[Person]]] = []


def register(people: Callable[[], Sequence[Person]]) -> None:
    """Register the function that returns the people."""
    _registered[:] = [people]


def people() -> list[Person]:
    """Return the people of the demonstration, and none on a real server."""
    return [person for each in _registered for person in each()] if settings.DEMONSTRATION else []
