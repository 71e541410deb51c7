"""Long lists, a page at a time, each found by where the last one ended: nothing is counted, nothing is skipped."""

from rest_framework.pagination import CursorPagination


class NewestFirst(CursorPagination):
    """By primary key, which grows with time."""

    ordering = "-pk"
    page_size = 100
    page_size_query_param = "page_size"
    max_page_size = 250  # of people, each row is also noted: more of them make an answer slow
