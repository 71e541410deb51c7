"""Gateways, which take a push from us and hand it to Apple, Google or a device. docs/extending.md says how to add one.

Delivery knows none of them, and a gateway knows nothing of delivery. Each is a folder with a Django app of its own,
which registers it under the name that its routes are stored with (`registry`).
"""
