from datetime import timedelta

import pytest
from django.utils import timezone

from kit.db.deleting import delete_in_chunks
from registrations.models import RegistrationEvent
from tests.rig import rows


@pytest.mark.django_db
def test_rows_are_removed_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.db.deleting.CHUNK_SIZE", 2)
    for _ in range(5):
        rows.make_event(kind=RegistrationEvent.Kind.EXPIRED, at=timezone.now() - timedelta(days=800))

    assert list(delete_in_chunks(RegistrationEvent.objects.order_by("at"))) == [2, 2, 1]
