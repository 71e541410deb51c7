"""Limits of what is read. Prosody and ejabberd pass on stanzas of up to 512 KiB, of which no push needs a tenth."""

MAX_STANZA_BYTES = 64 * 1024
# Deeper than any stanza of the protocols, and far from what costs anything.
MAX_DEPTH = 64
MAX_CLIENT_CHARACTERS = 1024
# A JID is three parts of at most 1023 bytes each (RFC 7622, 3.1).
MAX_JID_CHARACTERS = 3071
MAX_ID_CHARACTERS = 1024
MAX_DEVICE_ID_CHARACTERS = 255
IV_BYTES = 12
