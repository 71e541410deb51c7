"""The progress of a store: the list of its pending windows stays short."""

from datetime import UTC, datetime, timedelta

from tests.rig.conversation import PUBSUB_TOPIC
from waku_bridge.reading.store import progress
from waku_bridge.reading.store.progress import Reason, StoreProgress
from waku_bridge.reading.store.windows import Plan, Window

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def missed(number):
    """Return the plan of a pass before which the first half of this hour was missed."""
    window = Window(NOW + number * HOUR, NOW + (number + 0.5) * HOUR)
    return Plan(watermark_at=window.end_at, fresh=window, missed=window)


def test_the_windows_of_a_store_that_comes_and_goes_are_merged(run):
    async def scenario(world):
        store = StoreProgress(world.session, world.url, PUBSUB_TOPIC)
        for number in range(progress.MAX_WINDOWS * 3):
            pending = await store.advance(await store.load(), missed(number))
            assert len(pending) <= progress.MAX_WINDOWS
        windows = [each.window for each in pending]
        assert windows[0].end_at == NOW + (progress.MAX_WINDOWS * 3 - 0.5) * HOUR, "newest first"
        assert windows[-1].start_at == NOW
        assert {each.reason for each in pending} == {Reason.OUTAGE}

    run(scenario)


def test_windows_of_one_reason_are_merged_without_those_of_the_other(run):
    async def scenario(world):
        store = StoreProgress(world.session, world.url, PUBSUB_TOPIC)
        late = Window(NOW - HOUR, NOW)
        both = Plan(watermark_at=NOW, fresh=late, missed=late, late=late)
        await store.advance(await store.load(), both)
        searched_at = (await store.load()).late_searched_at
        for number in range(progress.MAX_WINDOWS):
            pending = await store.advance(await store.load(), missed(number))
        outage, found = pending
        assert outage.window == Window(NOW - HOUR, NOW + (progress.MAX_WINDOWS - 0.5) * HOUR)
        assert (found.reason, found.window) == (Reason.LATE, late)
        assert (await store.load()).late_searched_at == searched_at

    run(scenario)
