"""Pushes that may have arrived: which of them are not sent again."""

from collections.abc import Mapping

from django.db.models import Count

from notifications.messages import Outcome
from notifications.models import Attempt
from notifications.policy import INTERRUPTIONS, is_left_alone


def find_left_alone(ambiguous_counts: Mapping[int, int]) -> set[int]:
    """Of these notifications, each with the number of its ambiguous attempts, all of which are recorded.

    Costs nothing for those with one, which is nearly all of them.
    """
    doubtful = {notification_id: count for notification_id, count in ambiguous_counts.items() if count > 1}
    if not doubtful:
        return set()
    interrupted = Attempt.objects.filter(
        notification__in=doubtful, outcome=Outcome.AMBIGUOUS.value, code__in=INTERRUPTIONS
    )
    counts = dict(interrupted.order_by().values_list("notification").annotate(Count("pk")))
    return {pk for pk, count in doubtful.items() if is_left_alone(count, counts.get(pk, 0))}
