"""The links of a round trip, as the API answers them."""

from typing import Any

from rest_framework import serializers

from kit.canary.runs import BaseRun


class LinkAnswer(serializers.Serializer[Any]):
    """One link. Each canary adds ``link`` with the choices that it has."""

    result = serializers.ChoiceField(choices=["held", "broken", "not reached"])
    ms = serializers.IntegerField(allow_null=True, help_text="How long it took; null when nothing came of it.")


def links_of(run: BaseRun) -> list[dict[str, Any]]:
    """Return the links in the order of the chain."""
    return [{"link": link, "result": _result(run, link, ms), "ms": ms} for link, ms in run.timings().items()]


def _result(run: BaseRun, link: str, ms: int | None) -> str:
    """Return the result of one link. A broken link may have a time: that of the failure that the sender was told."""
    if link == run.broken_link:
        return "broken"
    return "not reached" if ms is None else "held"
