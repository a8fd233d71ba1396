"""A TCP proxy between a client and a server, whose faults can be switched on and off."""

import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.servers import HOST, Server, free_port


class Proxy:
    """A TCP proxy that can misbehave. What the server sends in one go is one reply, so do not pipeline through it."""

    def __init__(self, server: Server) -> None:
        self.delay = 0.0  # seconds, before each reply is passed on
        self.refuse = False  # close new connections at once
        self.mute = False  # requests reach the server, replies never come
        self.garbage: bytes | None = None  # sent once, instead of the next reply
        self.lasting = False  # garbage and cuts are for every reply from now on, not only for the next
        self.half_close_next = False  # instead of the next reply, half-close its connection, once
        self._cut: int | None = None
        self._target = server.port
        self._closed = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._clients: set[socket.socket] = set()
        self._half_closed: set[socket.socket] = set()
        self._forgotten: set[socket.socket] = set()
        self._listener = socket.create_server((HOST, free_port()))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://{HOST}:{self.port}/0"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut_reply(self, n: int) -> None:
        """Pass on n bytes of the next reply, then reset the connection."""
        self._cut = n

    def mend(self) -> None:
        """Replies are whole and true again."""
        self.lasting = self.half_close_next = False
        self.garbage = self._cut = None

    def drop(self) -> None:
        """Close all connections now."""
        for end in list(self._sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def half_close(self) -> None:
        """End what the server says on all connections now, and no more: requests still reach it."""
        for client in list(self._clients):
            self._half_close(client)

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            socket.create_connection((HOST, self.port), 1).close()  # wakes accept
        self._threads[0].join()
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join()

    def forget_clients(self) -> None:
        """Pass on no more replies on the connections of now: those that are made later work."""
        self._forgotten |= self._clients

    def _half_close(self, client: socket.socket) -> None:
        self._half_closed.add(client)
        with suppress(OSError):
            client.shutdown(socket.SHUT_WR)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._closed.is_set():
                return client.close()
            if self.refuse:
                client.close()
                continue
            self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        """One thread for both directions: a socket that another thread waits for cannot be reset."""
        with client, suppress(OSError), socket.create_connection((HOST, self._target)) as server:
            self._sockets |= {client, server}
            self._clients.add(client)
            with selectors.DefaultSelector() as selector:
                selector.register(client, selectors.EVENT_READ, self._pass_request)
                selector.register(server, selectors.EVENT_READ, self._pass_reply)
                while all(key.data(client, server) for key, _ in selector.select()):
                    pass
            self._sockets -= {client, server}
            self._clients.discard(client)
            self._half_closed.discard(client)

    def _pass_request(self, client: socket.socket, server: socket.socket) -> bool:
        """False when the connection is to end."""
        data = client.recv(65536)
        server.sendall(data)
        return bool(data)

    def _pass_reply(self, client: socket.socket, server: socket.socket) -> bool:
        data = server.recv(65536)
        if not data:
            return False
        self._closed.wait(self.delay)
        if self.half_close_next:
            self.half_close_next = False
            self._half_close(client)
        if self.mute or client in self._half_closed or client in self._forgotten:
            return True
        if self.garbage is not None:
            data = self.garbage
        cut = self._cut
        if not self.lasting:
            self.garbage = self._cut = None
        client.sendall(data[:cut])
        if cut is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
        return cut is None


@contextmanager
def proxy(server: Server) -> Iterator[Proxy]:
    between = Proxy(server)
    try:
        yield between
    finally:
        between.close()
