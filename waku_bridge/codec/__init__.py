"""The wire, sans I/O: bytes of a Waku payload to plain values and back.

No code here opens a socket, reads a clock or a setting, or keeps state. Keys, time and randomness are arguments.
Protobuf objects never leave this package. ``envelope`` is the whole chain, and every other module is one link of it.

See docs/conformance.md.
"""
