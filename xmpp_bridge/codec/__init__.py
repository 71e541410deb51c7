"""The wire format: bytes of a component stream to stanzas, stanzas to dataclasses, and answers to bytes.

Nothing here does I/O, imports a framework, or keeps a secret. Trees are compared and built by name and namespace,
because the order of attributes, the quotes and the prefixes change from one run of the same server to the next.

See docs/xmpp.md.
"""
