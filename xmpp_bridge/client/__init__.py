"""Reference clients of the XMPP push service: an app that registers its device, and a user's server that notifies it.

The cores do no I/O. `registering` has the requests of an app to the service and to its own server. `notifying` writes
the three dialects. `UserServer` has the duties of a server, by the draft of Push 2.0. `Account` and `Component` are
streams of slixmpp. `NotifyingServer` runs a `UserServer` over a component.

    device = Device(Platform.FCM, token, device_id, app="messenger")
    async with Account("juliet@capulet.test/phone", password, host, port) as juliet:
        answer = await register(juliet, "push.montague.test", device)       # Registered, or Refused with its reason
        await juliet.ask(registering.enable_xep0357(answer.service, answer.node, answer.secret, new_id()))

    async with NotifyingServer("userserver.test", secret, host, port) as server:
        route = Route(answer.service, Dialect.DRAFT, client=answer.client)
        server.core.enable(route)
        server.notify(route, Notification(Grade.HIGH))
        event = await server.next_event()                                   # Stored, Failed, Disabled, ...

Nothing here raises for a stanza of a peer: an error is a `Refused`, and a stanza that fails verification has no effect.

See docs/xmpp.md.
"""
