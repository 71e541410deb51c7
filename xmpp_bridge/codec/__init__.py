"""The wire format: bytes of a component stream to stanzas, stanzas to dataclasses, and answers to bytes.

Nothing here does I/O, imports a framework, or keeps a secret. Trees are compared and built by name and namespace. The
order of attributes, the quotes and the prefixes may change from one run of a server to the next.

See docs/xmpp.md.
"""
