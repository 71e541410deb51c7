"""The demonstration: its people (`people`), their actions (`run`), and users of XMPP with their servers.

The XMPP part is in `xmpp`, `xmpp_users` and `user_server`. Made-up reports (`reports`) come from made-up facts
(`facts`).

See README.md, "Try it".
"""
