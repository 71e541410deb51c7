"""The demonstration: its people (`people`), what they do (`run`), and the users of XMPP with their servers (`xmpp`,
`xmpp_users`, `user_server`).
"""
