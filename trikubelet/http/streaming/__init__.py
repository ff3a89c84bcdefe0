"""The wire of exec, attach and port-forward, as Kubernetes speaks it. It knows no pods and no containers.

The story of a command: a client upgrades an HTTP request, to SPDY/3.1 or to a WebSocket (`handshake.py`, on the client
`upgrade.py`). Over SPDY it opens a stream for each of the command's streams (`spdy.py`, on frames from `spdy_frames.py`
and `spdy_headers.py`); over a WebSocket (`websocket.py`) they are channels (`channels.py`). Either way the server's
handler sees one interface, and tells the result at the end. Port-forward is the same with two streams for each
connection, one for its data and one for its errors; a WebSocket may also tunnel SPDY as it is.

For servers:

    remote_command.serve_remote_command(request, takeover, CommandStreams, StreamingTimeouts)  -> RemoteCommand
        .stdin .stdout .stderr .resizes .tty .protocol, finish(CommandResult), wait_disconnected()
    port_forward.serve_port_forward(request, takeover, ports, StreamingTimeouts)  -> iterates over ForwardedPort
        .port .data .request_id, finish(error)

For clients, over any connected stream:

    client.open_command(stream, target, CommandStreams, transport="websocket" | "spdy")  -> ClientCommand
        .stdin .stdout .stderr .protocol, resize(TerminalSize), result(), run(stdin, stdout, stderr)
    client.open_port_forward(stream, target, transport="spdy" | "websocket")  -> PortForwarder
        forward(local, port), open(port), wait_disconnected()

The values of both are in `command.py`: CommandStreams, TerminalSize, Exited, Failed, StreamingTimeouts. Each
`async with` owns its connection: its tasks end with the body, in order when the body ends in order, at once otherwise.
A peer never cancels a body and never raises out of a background task; its streams end or break
(`trio.BrokenResourceError`).

Memory: a stream holds 256 KiB of what was not read (`inbox.py`), a connection 2 MiB; then the peer waits. A sender
waits until the transport has taken it (`outbox.py`). One unread stream stops the others of its connection,
as with every Kubernetes client and server, since their protocols have no flow control by stream.

Connections that only pass through the agent are not taken apart at all (`proxy.py`).
"""
