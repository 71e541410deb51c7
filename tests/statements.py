"""Which statements the server sends to PostgreSQL, by Django's cursors or by those of the message path."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest


@contextmanager
def before_each_statement(function: Callable[[str], object]) -> Iterator[None]:
    """Have ``function`` called with every statement just before it is sent, by any thread of this process."""
    execute = psycopg.Cursor.execute

    def noted(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
        function(str(query))
        return execute(cursor, query, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", noted)
        yield


@contextmanager
def statements() -> Iterator[list[str]]:
    """Note the statements that are sent meanwhile."""
    sent: list[str] = []
    with before_each_statement(sent.append):
        yield sent
