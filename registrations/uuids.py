"""Texts that the protocol accepts as a UUID."""

import re

# Exactly the texts that google/uuid's Parse accepts, because status-go uses it. uuid.UUID would also accept dashes in
# wrong places. Parse accepts any two bytes in place of braces around the 36 characters.
_DASHED = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_UUID = re.compile(
    rf"[0-9a-fA-F]{{32}}|{_DASHED}|[uU][rR][nN]:[uU][uU][iI][dD]:{_DASHED}|[\x00-\x7f]{_DASHED}[\x00-\x7f]"
)


def is_uuid(text: str) -> bool:
    """Return whether google/uuid's Parse accepts the text.

    This says nothing about equality: ids are compared as the original text.
    """
    return _UUID.fullmatch(text) is not None
