"""Endpoints of the API that read. Those that change something are in the folders of the bridges."""

from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema_view
from rest_framework import generics, mixins
from rest_framework.exceptions import ValidationError
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer, ModelSerializer

from notifications.models import Channel, Notification
from pushserver.api import answers
from pushserver.console.health.snapshot import take_snapshot
from pushserver.console.health.verdicts import to_json
from pushserver.console.models import ApiToken, CanaryRun
from pushserver.console.notifications.admin import PUSH_CONTENT
from pushserver.console.notifications.channels import with_halts
from pushserver.console.registrations.admin import RegistrationAdmin
from pushserver.console.toolkit.rest import Guarded, Reading, describe
from registrations.models import Registration
from spark_reports.models import Anomaly, ErrorRate, PublishedDay, TokenChurn

Scope = ApiToken.Scope
ID = OpenApiParameter("id", OpenApiTypes.UUID, OpenApiParameter.PATH)


class AboutPeople:
    """Mixin for rows about people: a list needs a filter, and the access log records each read, as in the console.

    It also records each request for a row that does not exist.
    """

    filterset_class: type[answers.BytesFilters]

    # A parameter counts only after cleaning: a space becomes empty, and would filter nothing.
    def list(self, request: Request, *arguments: Any, **named: Any) -> Response:
        asked = self.filterset_class(request.query_params)
        if asked.is_valid() and not any(asked.form.cleaned_data.values()):
            raise ValidationError({name: ["One of these is needed."] for name in asked.base_filters})
        answered: Response = super().list(request, *arguments, **named)  # type: ignore[misc]
        return answered

    def finalize_response(self, request: Request, response: Response, *arguments: Any, **named: Any) -> Response:
        page, data = f"api.{type(self).__name__.lower()}", response.data
        if isinstance(request.auth, ApiToken) and response.status_code == 200:
            ids = [self.number_in_log(row["id"]) for row in data.get("results", [data])]
            request.auth.note_opened(page, ids, at=timezone.now())
        elif isinstance(request.auth, ApiToken) and response.status_code == 404:
            request.auth.note_opened(f"{page}.missed", [str(self.kwargs.get("pk", ""))], at=timezone.now())  # type: ignore[attr-defined]
        answered: Response = super().finalize_response(request, response, *arguments, **named)  # type: ignore[misc]
        return answered

    def number_in_log(self, public_id: Any) -> str:
        """Return the number of a row, by which the console finds it."""
        return str(public_id)


@extend_schema_view(list=describe(answers.RegistrationAnswer(many=True)))
class Registrations(AboutPeople, mixins.ListModelMixin, Reading):
    """The registrations of one key or installation."""

    scope = Scope.REGISTRATIONS
    serializer_class = answers.RegistrationAnswer
    filterset_class = answers.RegistrationFilters
    queryset = Registration.objects.select_related("route").defer(*RegistrationAdmin.unread)


@extend_schema_view(
    list=describe(answers.NotificationAnswer(many=True)), retrieve=describe(answers.StoryAnswer, parameters=[ID])
)
class Notifications(AboutPeople, mixins.ListModelMixin, mixins.RetrieveModelMixin, Reading):
    """Notifications of one message or recipient, and the whole way of one."""

    scope = Scope.NOTIFICATIONS
    filterset_class = answers.NotificationFilters
    queryset = Notification.objects.select_related("request").defer(*PUSH_CONTENT, "request__reply_address")
    lookup_value_regex = "[0-9a-f-]{1,36}"

    def get_object(self) -> Notification:
        """Return the notification with this public id. Raises Http404."""
        found: Notification = get_object_or_404(self.get_queryset(), pk=answers.number_of(self.kwargs["pk"]))
        return found

    def number_in_log(self, public_id: Any) -> str:
        return str(answers.number_of(public_id))

    def get_serializer_class(self) -> type[BaseSerializer[Any]]:
        return answers.StoryAnswer if self.action == "retrieve" else answers.NotificationAnswer


@extend_schema_view(list=describe(answers.ChannelAnswer(many=True)))
class Channels(mixins.ListModelMixin, Reading):
    """Each app on each platform, and whether pushes go out to it."""

    scope = Scope.STATUS
    serializer_class = answers.ChannelAnswer
    queryset = with_halts(Channel.objects.all())


@extend_schema_view(list=describe(answers.CanaryRunAnswer(many=True)))
class CanaryRuns(mixins.ListModelMixin, Reading):
    """The last round trips through the whole chain, and which link of it broke."""

    scope = Scope.STATUS
    serializer_class = answers.CanaryRunAnswer
    filterset_fields = ("state",)  # without an index: there is one row a minute, some ten thousand in all
    queryset = CanaryRun.objects.filter(network=CanaryRun.Network.WAKU)


@extend_schema_view(list=describe(answers.XmppCanaryRunAnswer(many=True)))
class XmppCanaryRuns(CanaryRuns):
    """The last round trips through the operator's XMPP server, and which link of the chain broke."""

    serializer_class = answers.XmppCanaryRunAnswer
    queryset = CanaryRun.objects.filter(network=CanaryRun.Network.XMPP)


def report(model: Any, *narrowed_by: str) -> Any:
    """Return the view of one nightly report, with filters by day and by some of its columns."""
    fields = type("Meta", (), {"model": model, "exclude": ["id"]})
    answer = type(f"{model.__name__}Answer", (ModelSerializer,), {"Meta": fields})
    columns = type("Meta", (), {"model": model, "fields": list(narrowed_by)})
    filterset = type(f"{model.__name__}Filters", (answers.ReportFilters,), {"Meta": columns})
    made_up = PublishedDay.objects.filter(is_made_up=True).values("day")
    real = model.objects.exclude(day__in=made_up)  # a program cannot see the banner of made-up reports
    details = {"scope": Scope.REPORTS, "serializer_class": answer, "filterset_class": filterset, "queryset": real}
    view = type(f"{model.__name__}s", (mixins.ListModelMixin, Reading), details)
    return extend_schema_view(list=describe(answer(many=True)))(view)


PLACE = ("platform", "app_topic", "bridge")
ErrorRates = report(ErrorRate, "hour", "stage", *PLACE, "outcome", "code")
TokenChurns = report(TokenChurn, *PLACE)
Anomalies = report(Anomaly, "figure", "stage", "platform", "bridge")


class Status(Guarded, generics.GenericAPIView[Any]):
    """Whether a message would make it through, and every health indicator of the server."""

    scope = Scope.STATUS
    serializer_class = answers.StatusAnswer

    @describe(answers.StatusAnswer)  # type: ignore[untyped-decorator]
    def get(self, _request: Request) -> Response:
        return Response(to_json(take_snapshot(now=timezone.now()).indicators))
