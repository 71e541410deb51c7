"""The wire: bytes of a component stream to stanzas, stanzas to what they say, and answers to bytes.

Nothing here does I/O, knows a framework, or keeps a secret. Trees are compared and built by name and namespace, because
the order of attributes, the quotes and prefixes change from one run of the same server to the next.

See docs/xmpp.md.
"""
