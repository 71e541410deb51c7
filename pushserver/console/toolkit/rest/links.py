"""The links of a round trip in answers of the API."""

from typing import Any

from rest_framework import serializers

from pushserver.console.canary.runs import BaseRun


class LinkAnswer(serializers.Serializer[Any]):
    """One link. The serializer of each canary adds the field ``link``, with its own choices."""

    result = serializers.ChoiceField(choices=["held", "broken", "not reached"])
    ms = serializers.IntegerField(allow_null=True, help_text="Duration of the link; null when it did not answer.")


def links_of(run: BaseRun) -> list[dict[str, Any]]:
    """Return the links in the order of the chain."""
    return [{"link": link, "result": _result(run, link, ms), "ms": ms} for link, ms in run.timings().items()]


def _result(run: BaseRun, link: str, ms: int | None) -> str:
    """Return the result of one link. A broken link can have a time: until the server answered with a failure."""
    if link == run.broken_link:
        return "broken"
    return "not reached" if ms is None else "held"
