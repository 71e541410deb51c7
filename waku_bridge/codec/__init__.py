"""The wire, sans I/O: bytes of a Waku payload to plain values and back.

Nothing here opens a socket, reads a clock or a setting, or keeps state. Keys, time and randomness are arguments;
protobuf objects never leave this package. ``envelope`` is the whole chain, every other module is one link of it.

See docs/conformance.md.
"""
