"""Pages of long lists. A page starts where the last one ended, so no rows are counted or skipped."""

from rest_framework.pagination import CursorPagination


class NewestFirst(CursorPagination):
    """Order by primary key, which grows with time."""

    ordering = "-pk"
    page_size = 100
    page_size_query_param = "page_size"
    max_page_size = 250  # of people, each row is also noted: more of them make an answer slow
