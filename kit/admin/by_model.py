"""Registry of functions about rows, by the model of the row."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from django.db.models import Model

T = TypeVar("T")


class ByModel(Generic[T]):
    """Functions from a row to a T, one for each model that has one."""

    def __init__(self) -> None:
        self._functions: dict[type[Model], Callable[[Any], T]] = {}

    def register(self, model: type[Model]) -> Callable[[Callable[[Any], T]], Callable[[Any], T]]:
        """Return a decorator that registers the function about rows of ``model``."""

        def remember(function: Callable[[Any], T]) -> Callable[[Any], T]:
            self._functions[model] = function
            return function

        return remember

    def of(self, row: Model) -> T | None:
        """Return the result of the function about a row, or None where its model has none."""
        function = self._functions.get(type(row))
        return function(row) if function else None
