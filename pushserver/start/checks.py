"""System checks: each reports a wrong value of the configuration with an id and a hint."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's word
from django.db import ProgrammingError

from registrations.messages import TokenType
from registrations.rules import DEVICE_TOKENS


@register()
def configuration_is_usable(app_configs: Sequence[Any] | None, **_kwargs: object) -> list[CheckMessage]:  # noqa: ARG001
    """Report the problems that `pushserver.config.environment` found while the settings were read."""
    return list(settings.CONFIGURATION_PROBLEMS)


@register()
def canary_can_register(app_configs: Sequence[Any] | None, **_kwargs: object) -> list[CheckMessage]:  # noqa: ARG001
    """Report a CANARY_DEVICE_TOKEN that the server would refuse when the canary registers it."""
    token = settings.CANARY_DEVICE_TOKEN
    kind = TokenType.APN if settings.CANARY_APP_TOPIC else TokenType.FIREBASE
    if not token or not settings.CHECK_DEVICE_TOKENS or DEVICE_TOKENS[kind].fullmatch(token):
        return []
    message = f"CANARY_DEVICE_TOKEN is no token as the service {kind.name} makes them."
    hint = "Copy it in full. CANARY_APP_TOPIC makes it one of Apple, else it is one of Firebase."
    return [Error(message, hint=hint, id="pushserver.bad_canary_token")]


@register(Tags.database)
def field_keys_fit_the_database(
    app_configs: Sequence[Any] | None,  # noqa: ARG001
    databases: Sequence[str] | None = None,
    **_kwargs: object,
) -> list[CheckMessage]:
    """Report field keys that open no stored address. `manage.py migrate` runs this check before anything starts."""
    from pushserver.start.fitting import foreign_field_keys  # noqa: PLC0415 - imports the codec, for this check only

    try:
        found = list(foreign_field_keys()) if databases else []
    except ProgrammingError:  # the first migrations were interrupted before the column came
        return []
    return [Error(problem, id="pushserver.foreign_field_keys") for problem in found]


@register(Tags.database)
def sessions_begin_as_asked(
    app_configs: Sequence[Any] | None,  # noqa: ARG001
    databases: Sequence[str] | None = None,
    **_kwargs: object,
) -> list[CheckMessage]:
    """Warn about session settings that a pooler does not pass on. Without them the server is slow, but correct."""
    from pushserver.start.fitting import odd_session  # noqa: PLC0415 - as above

    return [Warning(problem, id="pushserver.odd_session") for problem in (odd_session() if databases else ())]
