"""What the console knows about all apps at once: which rows belong together, and how a chat key is looked up."""
