"""Limits of what is read. Prosody and ejabberd pass on stanzas of up to 512 KiB, of which no push needs a tenth."""

MAX_STANZA_BYTES = 64 * 1024
# One tag, of a stanza that is not read, too. It is twice as large as what any server passes on.
MAX_TAG_BYTES = 1024 * 1024
# Tags that open or close something, in one stanza. The largest form of ours has fifty.
MAX_TAGS = 1000
MAX_CLIENT_CHARACTERS = 1024
# A JID is three parts of at most 1023 bytes each (RFC 7622, 3.1).
MAX_JID_CHARACTERS = 3071
MAX_ID_CHARACTERS = 1024
MAX_DEVICE_ID_CHARACTERS = 255
IV_BYTES = 12
