"""Server side of one HTTP/1.1 connection, with one request after the other."""

import asyncio

import h11

from tests.rig.providers.messages import Answer, Break, Reply, Request

READ_BYTES = 64 * 1024


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer, *, already_read: bytes = b""
) -> None:
    """Serve until one side closes. ``already_read`` has the bytes that were read from the stream to find the first
    request.
    """
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(already_read)
    while request := await _read(reader, connection):
        reply = await answer(request)
        if isinstance(reply, Break):
            reply.apply(writer)
            return
        writer.write(_encode(connection, reply))
        await writer.drain()
        if connection.our_state is h11.MUST_CLOSE:
            return
        connection.start_next_cycle()


async def _read(reader: asyncio.StreamReader, connection: h11.Connection) -> Request | None:
    """Read a request, or return None at the end of the stream. The target may be in absolute form, as a proxy
    gets it.
    """
    head, body = None, bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(READ_BYTES)
            if not data and head is None:
                return None
            connection.receive_data(data)
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body.extend(event.data)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            headers = {name.decode(): value.decode() for name, value in head.headers}
            return Request(head.method.decode(), head.target.decode(), headers, bytes(body))
        else:
            return None


def _encode(connection: h11.Connection, reply: Reply) -> bytes:
    headers = [*reply.headers.items(), ("content-length", str(len(reply.body)))]
    head = connection.send(h11.Response(status_code=reply.status, headers=headers))
    return (head or b"") + (connection.send(h11.Data(reply.body)) or b"") + (connection.send(h11.EndOfMessage()) or b"")
