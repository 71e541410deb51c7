"""The saved notices of the config check. Their memory holds the facts of the last check that the console shows."""

from kit.health.notices import NoticeCache

NOTICES = NoticeCache("node")
