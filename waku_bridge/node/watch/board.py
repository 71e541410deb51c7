"""The notices of the watch. Their memory is what the last look at the node read, in words for the console."""

from notifications.notices import Board

BOARD = Board("node")
