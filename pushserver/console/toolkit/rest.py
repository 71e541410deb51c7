"""Building blocks of the API endpoints of all apps: views, paging, errors (RFC 9457) and links. See docs/api.md."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, ClassVar

import structlog
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django_filters.rest_framework import DjangoFilterBackend
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import exceptions, serializers, viewsets
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated, Throttled
from rest_framework.pagination import CursorPagination
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler

from pushserver.console.toolkit.throttling import PerAddress

log = structlog.get_logger(__name__)
LOGGED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}
MEDIA_TYPE = "application/problem+json"
PREFIX = "/api/"


class Problem(serializers.Serializer[dict[str, Any]]):
    """The body of every error answer."""

    type = serializers.CharField(help_text="Always about:blank: the status names the kind of problem.")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField(required=False)
    errors = serializers.DictField(  # type: ignore[assignment]  # the standard names it so
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text="Which parameter is wrong, and why.",
    )


def as_problem(error: Exception, context: dict[str, Any]) -> Response | None:
    """Turn an exception of a view into a problem, or return None for a fault, which `ProblemPages` answers.

    Django REST framework calls this function.
    """
    response = exception_handler(error, context)
    if response is None:
        return None
    if response.status_code in LOGGED:
        log.warning("call_refused", status=response.status_code, view=type(context["view"]).__name__)
    response.data = problem(response.status_code, **_details(error))
    response.content_type = MEDIA_TYPE
    return response


def problem(status: int, **details: Any) -> dict[str, Any]:
    """Return the body of a problem with this HTTP status."""
    return {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, **details}


def _details(error: Exception) -> dict[str, Any]:
    if isinstance(error, exceptions.ValidationError) and isinstance(error.detail, dict):
        return {"errors": {name: _texts(texts) for name, texts in error.detail.items()}}
    if isinstance(error, Http404):  # its text may quote the request
        return {}
    detail = getattr(error, "detail", None)
    return {"detail": str(detail)} if isinstance(detail, str) else {}


def _texts(texts: Any) -> list[str]:
    return [str(text) for text in texts] if isinstance(texts, list | tuple) else [str(texts)]


class ProblemPages:
    """Middleware that replaces Django's own HTML error pages under /api by problems."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        if not request.path.startswith(PREFIX) or response.status_code < HTTPStatus.BAD_REQUEST or not is_page:
            return response
        return JsonResponse(problem(response.status_code), status=response.status_code, content_type=MEDIA_TYPE)


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
