"""The notices of the watch. Their memory is what gorush counted, for the next look to compare with."""

from notifications.notices import Board

BOARD = Board("gorush", version=2)
