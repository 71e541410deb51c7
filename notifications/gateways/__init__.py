"""Gateways, which pass pushes on to Apple, Google or a device. docs/extending.md says how to add one.

Delivery imports no gateway, and a gateway imports nothing of delivery. Each gateway is a folder with a Django app of
its own, which registers it under the name that its routes are stored with (`registry`).
"""
