"""What stands around every page of the console: its site, theme, menu and links."""
