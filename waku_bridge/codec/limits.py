"""Size limits of a peer's messages.

status-go has none of these limits. They cost an honest client nothing, and they keep one message from occupying a
worker, the database or, through query answers, the network.
"""

MAX_PAYLOAD_BYTES = 1024 * 1024
"""Encrypted payload of a WakuMessage: the limit of status-go's relay. nwaku forwards 150 KiB."""

MAX_BODY_BYTES = 128 * 1024
"""Decrypted registration, query or request: nwaku's 150 KiB less a reserve for the wrapping."""

MAX_ENVELOPE_BYTES = MAX_BODY_BYTES + 4 * 1024
"""Encrypted payload that a server stores: the largest body and its wrapping."""

MAX_LIST_ENTRIES = 2000
"""Entries of each list of a registration. One is 64 bytes, and every query answer repeats the list of allowed keys."""

MAX_TOKEN_BYTES = 4 * 1024
"""Each text of a registration, in UTF-8. Tokens of Apple and Firebase have 64 to some 200 characters today."""

MAX_QUERY_KEYS = 100
"""Key hashes in one query. status-go asks for one at a time."""

MAX_NOTIFICATIONS = 100
"""Notifications in one request: as many as a gateway takes in one call by default. status-go sends one per device."""

MAX_KEY_HASH_BYTES = 64
"""Key hash in a request. A longer one belongs to nobody, and would not fit the index."""

MAX_ID_BYTES = 256
"""Installation id and message id in a request. Both are stored and answered. Honest ones have 36 and 32 bytes."""
