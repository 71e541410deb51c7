"""The demonstration: its people (`people`), what they do (`run`), and the users of XMPP with their servers (`xmpp`,
`xmpp_users`, `user_server`). Made-up reports (`reports`) are of made-up facts (`facts`).

See README.md, "Try it".
"""
