"""What one client, and all of them together, may cost the agent."""

from __future__ import annotations

from trikubelet.formats.values import frozen


@frozen
class Limits:
    """Sizes in bytes, times in seconds. Memory per connection is about the sum of the sizes."""

    connections: int = 1000
    """One more gets 503 and is closed."""
    header_size: int = 32 * 2**10
    body_size: int = 2**20
    pipelined_size: int = 64 * 2**10
    """What may arrive while a request is being answered. Beyond it the connection is not read, so that a client that
    goes away then is only noticed when something is written to it."""
    header_timeout: float = 10.0
    """From a request's first byte (for the first request: from the connection's beginning) to the end of its head."""
    body_timeout: float = 30.0
    idle_timeout: float = 90.0
    """Between two requests of a connection."""
    write_timeout: float = 30.0
    """For each `write_size` bytes of an answer: a client that reads slower than that is cut off."""
    write_size: int = 64 * 2**10
    linger_timeout: float = 1.0
    """How long to read on after refusing a request that the client is still sending, so that it sees the answer."""
