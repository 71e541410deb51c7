"""A relay between clients and PostgreSQL that delays every piece: `python -m bench.running.delaying`.

So a database is as far away as over a network. A piece is the data of one write. Pieces that come while one is delayed
go on together, as over a network.
"""

import argparse
import socket
import threading
import time

PIECE_BYTES = 1 << 20


def main() -> None:
    """Listen on a port of 127.0.0.1 until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--socket", required=True, help="where PostgreSQL listens")
    parser.add_argument("--milliseconds", type=float, required=True, help="there and back")
    arguments = parser.parse_args()
    seconds = arguments.milliseconds / 2000
    with socket.create_server(("127.0.0.1", arguments.port)) as listener:
        while True:
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            server = socket.socket(socket.AF_UNIX)
            server.connect(arguments.socket)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(source, target, seconds), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket, seconds: float) -> None:
    try:
        while piece := source.recv(PIECE_BYTES):
            time.sleep(seconds)
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        target.close()


if __name__ == "__main__":
    main()
