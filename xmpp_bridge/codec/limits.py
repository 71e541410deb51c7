"""Size limits of stanzas and their parts. Prosody and ejabberd pass on 512 KiB; no push needs a tenth of that."""

MAX_STANZA_BYTES = 64 * 1024
# One tag, also of a stanza that is skipped as too large. It is twice the size that any server passes on.
MAX_TAG_BYTES = 1024 * 1024
# Opening and closing tags in one stanza. The largest of our forms has fifty.
MAX_TAGS = 1000
MAX_CLIENT_CHARACTERS = 1024
# A JID is three parts of at most 1023 bytes each (RFC 7622, 3.1).
MAX_JID_CHARACTERS = 3071
MAX_ID_CHARACTERS = 1024
MAX_DEVICE_ID_CHARACTERS = 255
IV_BYTES = 12
