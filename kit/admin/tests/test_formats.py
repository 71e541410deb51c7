"""Tests that Django and `kit.admin.times` write dates in the same form."""

from datetime import UTC, datetime

from django.template import engines
from django.utils.formats import localize

from kit.admin.times import exact

AT = datetime(2026, 11, 28, 7, 8, 9, tzinfo=UTC)


def test_django_writes_times_in_our_format() -> None:
    assert localize(AT) == exact(AT) == "2026-11-28 07:08:09 UTC"
    assert localize(AT.date()) == "2026-11-28"
    template = engines["django"].from_string('{{ at }}, {{ at|date:"DATETIME_FORMAT" }}')
    assert template.render({"at": AT}) == "2026-11-28 07:08:09 UTC, 2026-11-28 07:08:09 UTC"
