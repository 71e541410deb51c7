"""Base classes of all API views. The settings define which tokens may call a view, by its ``scope``."""

from collections.abc import Sequence
from typing import Any, ClassVar

from django_filters.rest_framework import DjangoFilterBackend
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import viewsets
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated, Throttled
from rest_framework.pagination import CursorPagination
from rest_framework.response import Response
from rest_framework.views import APIView

from pushserver.console.toolkit.rest.problems import Problem
from pushserver.console.toolkit.rest.throttling import PerAddress

PROBLEMS: dict[Any, Any] = {
    (status, "application/problem+json"): OpenApiResponse(Problem, description)
    for status, description in {
        400: "A parameter is wrong.",
        401: "The token is missing or not valid.",
        403: "The token lacks the required scope.",
        404: "The object does not exist.",
        406: "Answers are JSON.",
        429: "Too many calls.",
    }.items()
}


def describe(answer: Any, *, more: dict[Any, Any] | None = None, **details: Any) -> Any:
    """Describe a view in the OpenAPI schema: its answer with status 200, the problems of every view, and ``more``
    answers by status.
    """
    return extend_schema(responses={200: answer, **PROBLEMS, **(more or {})}, **details)


class Guarded(APIView):
    """A view that limits callers without a valid token. It allows only GET and HEAD, unless a subclass adds more."""

    http_method_names: Sequence[str] = ("get", "head")

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, AuthenticationFailed | NotAuthenticated):
            throttle = PerAddress()
            if not throttle.allow_request(self.request, self):
                exc = Throttled(throttle.wait())
        return super().handle_exception(exc)


class NewestFirst(CursorPagination):
    """Paging by cursor over the primary key, which grows with time. PostgreSQL counts and skips no rows."""

    ordering = "-pk"
    page_size = 100
    page_size_query_param = "page_size"
    max_page_size = 250  # an answer about people also logs each row, so a larger page would be slow


class Reading(Guarded, viewsets.GenericViewSet[Any]):
    """Lists and single rows, for tokens with this ``scope``."""

    scope: ClassVar[str]
    pagination_class = NewestFirst
    filter_backends = (DjangoFilterBackend,)
