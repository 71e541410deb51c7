"""Support: from what somebody reports to the user or notification that it is about."""
