"""The HTTP interface of the development gorush: its API, its pages, and the server itself."""
