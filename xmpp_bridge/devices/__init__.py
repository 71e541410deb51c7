"""Devices: registering them by the commands of apps, looking them up, and removing them."""
