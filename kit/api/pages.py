"""Paging of long lists by cursor: a page starts where the last one ended, so PostgreSQL counts and skips no rows."""

from rest_framework.pagination import CursorPagination


class NewestFirst(CursorPagination):
    """Order by primary key, which grows with time."""

    ordering = "-pk"
    page_size = 100
    page_size_query_param = "page_size"
    max_page_size = 250  # an answer about people also logs each row, so a larger page would be slow
