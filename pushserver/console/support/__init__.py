"""Support: search boxes, pages of users and timelines, for somebody who handles a report of a user."""
