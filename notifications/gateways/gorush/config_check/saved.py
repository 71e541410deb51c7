"""The saved notices of the config check, with gorush's counters, which the next check compares with."""

from kit.health.notices import NoticeCache

NOTICES = NoticeCache("gorush")
