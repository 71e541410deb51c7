"""What is still to be read of a store's past stays a short list."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.factories import make_watermark
from waku_bridge.models import StoreWindow
from waku_bridge.reading import progress
from waku_bridge.reading.windows import Window

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.django_db
def test_the_windows_of_a_store_that_comes_and_goes_are_merged() -> None:
    watermark = make_watermark()
    for number in range(progress.MAX_WINDOWS * 3):
        window = Window(NOW + number * HOUR, NOW + (number + 0.5) * HOUR)
        progress._order(watermark.pk, progress.Reason.OUTAGE, window, NOW)

    windows = StoreWindow.objects.order_by("start_at")
    assert windows.count() <= progress.MAX_WINDOWS
    assert windows[0].start_at == NOW
    assert max(window.end_at for window in windows) == NOW + (progress.MAX_WINDOWS * 3 - 0.5) * HOUR
