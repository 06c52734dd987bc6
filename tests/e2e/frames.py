"""Frames by hand, from PROTOCOL.md alone: what a client of another maker would send to a node, and what it would get."""
import socket
import struct

import harness

HEADER = struct.Struct("<IBBBBIIQQQQQIIII")


def control(operation, value=b"", request=1):
    return HEADER.pack(0x3154485A, 1, 3, operation, 0, 0, len(value), request, 0, 0, 0, 0, 0, 0, len(value), 0) + value


class Peer:
    """A client's side of a TCP connection."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), harness.DEADLINE)
        self.socket.settimeout(harness.DEADLINE)

    def close(self):
        self.socket.close()

    def read(self, size):
        got = b""
        while len(got) < size:
            more = self.socket.recv(size - len(got))
            if not more:
                raise EOFError
            got += more
        return got

    def reply(self):
        """(type, operation, status, key: the message, value)"""
        head = HEADER.unpack(self.read(HEADER.size))
        body = self.read(head[6])
        return head[2], head[3], head[4], body[:head[13]].decode(), body[head[13]:head[13] + head[14]]
