"""Frame of every page of the console: site, theme, menu and links."""
