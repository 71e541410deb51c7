"""Pages of the console to which indicators lead, by the names of their URLs."""

from pushserver.console.health.verdicts import Page, rows

DRAIN = Page("Drain", "drain", "notifications.operate_drain")
STUCK = rows("Stuck notifications", "notifications.notification", "progress=stuck")
ATTEMPTS = rows("Attempts", "notifications.attempt")
FAILED_ATTEMPTS = rows("Failed attempts", "notifications.attempt", "failed=yes")
CHANNELS = rows("Apps", "notifications.channel")
TRIPPED = rows("Tripped apps", "notifications.channel", "halted=tripped")
PAUSED = rows("Paused apps", "notifications.channel", "halted=paused")
HALTED = rows("Halted apps", "notifications.channel", "halted=yes")
OPEN = rows("Open notifications", "notifications.notification", "progress=open")
ENDED = rows("Notifications", "notifications.notification")
NEWEST_REQUESTS = rows("Newest requests", "notifications.notificationrequest")
REQUESTS = rows("Requests that wait", "notifications.notificationrequest", "state__exact=waiting")
REGISTRATIONS = rows("Registrations", "registrations.registration")
REPORTS = Page("Last night", "reports:overview", "spark_reports.view_publishedday")
INCIDENTS = rows("Incidents", "pushserver.incident")
RUNS = rows("Runs", "spark_reports.reportrun")
