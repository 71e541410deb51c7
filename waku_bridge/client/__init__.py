"""Reference clients of a push server: what a phone that registers and a phone that notifies say, and what they believe.

`registering` and `sending` are cores without I/O: they turn wishes into messages, and messages into what happened. Keys
and randomness are given to them, time is an argument. `session` carries their messages over a Waku node.

    client = RegisteringClient(identity, installation_id, access_token, os.urandom)
    client.change(Address(TokenType.FIREBASE, device_token))
    session = Session(WakuNode(url, http_client))
    await session.register(client, server_public_key)

    sender = SendingClient(identity, ephemeral, os.urandom)
    destinations = await session.query(sender, client_public_key)
    reports = await session.notify(sender, destinations, sender.one_to_one(), status_message_id)

Public keys are compressed (33 bytes) everywhere.
"""
