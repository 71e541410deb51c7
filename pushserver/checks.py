"""System checks: each reports a wrong value of the configuration with an id and a hint."""

import socket
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
def database_is_usable(
    app_configs: Sequence[Any] | None,  # noqa: ARG001
    databases: Sequence[str] | None = None,
    **_kwargs: object,
) -> list[CheckMessage]:
    """Report a database that this server cannot use, or whose addresses the field keys do not open. `manage.py migrate`
    runs this check before anything starts.
    """
    if not databases or settings.CONFIGURATION_PROBLEMS:
        return []
    from pushserver.fitting import foreign_field_keys, unusable_database  # noqa: PLC0415 - imports the codec

    if unusable := [Error(fault, id="pushserver.unusable_database") for fault in unusable_database()]:
        return list(unusable)
    try:
        return [Error(fault, id="pushserver.foreign_field_keys") for fault in foreign_field_keys()]
    except ProgrammingError:  # the first migrations were interrupted before the column came
        return []


@register(Tags.database)
def servers_do_as_asked(
    app_configs: Sequence[Any] | None,  # noqa: ARG001
    databases: Sequence[str] | None = None,
    **_kwargs: object,
) -> list[CheckMessage]:
    """Warn about session settings that a pooler does not pass on, without which the server is slow, and about a Redis
    that refuses what workers do there.
    """
    if not databases or settings.CONFIGURATION_PROBLEMS:
        return []
    from pushserver.fitting import odd_session, refusing_broker  # noqa: PLC0415 - as above

    return [
        *(Warning(oddity, id="pushserver.odd_session") for oddity in odd_session()),
        *(Warning(fault, id="pushserver.refusing_broker") for fault in refusing_broker()),
    ]


@register()
def listens_here(app_configs: Sequence[Any] | None, **_kwargs: object) -> list[CheckMessage]:  # noqa: ARG001
    """Report a HOST that no server of this machine can listen on."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in settings.HOST else socket.AF_INET) as tried:
            tried.bind((settings.HOST, 0))
    except (OSError, UnicodeError):
        hint = "Set 127.0.0.1, or 0.0.0.0 in a container. Other programs set HOST, too: conda, tcsh."
        return [Error("HOST is no address of this machine.", hint=hint, id="pushserver.bad_host")]
    return []
