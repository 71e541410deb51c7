"""Delivering notifications: claim them and write the attempts, send without holding anything open, record the results.

Also what belongs to it over time: which are due, what a crash left behind, which requests can be answered now.
"""

from notifications.delivery.claim import Claim, Claimed, claim
from notifications.delivery.deliver import deliver
from notifications.delivery.lanes import Lanes
from notifications.delivery.queueing import BATCH_SIZE, hand_out_due, split_by_lane, take_up_lost
from notifications.delivery.recording import FINISHED_BY, record
from notifications.delivery.settling import overdue_request_ids, settle
from notifications.transitions import DUE

__all__ = [
    "BATCH_SIZE",
    "DUE",
    "FINISHED_BY",
    "Claim",
    "Claimed",
    "Lanes",
    "claim",
    "deliver",
    "hand_out_due",
    "overdue_request_ids",
    "record",
    "settle",
    "split_by_lane",
    "take_up_lost",
]
