"""The notices of the config check. Their memory is what gorush counted, for the next check to compare with."""

from kit.http.notices import NoticeCache

NOTICES = NoticeCache("gorush")
