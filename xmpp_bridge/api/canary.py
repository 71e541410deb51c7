"""Endpoint of the canary's round trips, for monitoring."""

from typing import Any, ClassVar

import django_filters
from drf_spectacular.utils import extend_schema_field, extend_schema_view
from rest_framework import mixins, serializers

from kit.api.views import Reading, describe
from kit.canary.answers import LinkAnswer, links_of
from xmpp_bridge.models import CanaryRun


class XmppLinkAnswer(LinkAnswer):
    link = serializers.ChoiceField(choices=CanaryRun.Link.choices)


class XmppCanaryRunAnswer(serializers.ModelSerializer[CanaryRun]):
    """One round trip of the canary of XMPP, with every link in the order of the chain."""

    links = serializers.SerializerMethodField()

    class Meta:
        model = CanaryRun
        fields: ClassVar = ["id", "state", "started_at", "finished_at", "broken_link", "cause", "detail", "links"]

    @extend_schema_field(XmppLinkAnswer(many=True))
    def get_links(self, run: CanaryRun) -> list[dict[str, Any]]:
        return links_of(run)


class XmppCanaryFilters(django_filters.FilterSet):  # type: ignore[misc]  # has no types
    """Filter of runs, without an index: the table grows by one row a minute, to some ten thousand rows."""

    class Meta:
        model = CanaryRun
        fields: ClassVar[list[str]] = ["state"]


@extend_schema_view(list=describe(XmppCanaryRunAnswer(many=True)))
class XmppCanaryRuns(mixins.ListModelMixin, Reading):
    """The last round trips through the operator's XMPP server, and which link of the chain broke."""

    scope = "status"
    serializer_class = XmppCanaryRunAnswer
    filterset_class = XmppCanaryFilters
    queryset = CanaryRun.objects.defer("device", "pseudonym")
