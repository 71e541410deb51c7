"""System checks: what is wrong with the configuration, each with an id and a hint."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from pushserver.environment import Problem


@register()
def configuration_is_usable(app_configs: Sequence[Any] | None, **_kwargs: object) -> list[CheckMessage]:  # noqa: ARG001
    problems: list[Problem] = settings.CONFIGURATION_PROBLEMS
    return [Error(problem.message, hint=problem.hint, id=problem.id) for problem in problems]
