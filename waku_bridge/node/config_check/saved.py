"""The notices of the config check. Their memory is what the last check read from the node, in words for the console."""

from kit.http.notices import NoticeCache

NOTICES = NoticeCache("node")
