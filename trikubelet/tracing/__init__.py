"""Traces: what the agent does, as spans in OpenTelemetry's sense, sent to a collector.

Nothing here is imported by an agent without `tracing` in its configuration. The story of a span:

1. Whoever wraps a part of the agent begins one: `calls` around the runtime's CRI, `requests` around the node's HTTP
   API, `agent/tracing.py` around pods' lives. The parts themselves know nothing of it.
2. Its parent is what the task is in (`spans.CURRENT`, a context variable: tasks inherit it from the one that starts
   them, so spans nest as scopes do). A task may outlive the span that it was started in; then what it does belongs
   to the nearest one around that which has not ended, or begins a trace of its own with a link to it.
3. Whether a trace is recorded is decided once, at its first span (`context`), by its id: every agent, and an agent
   that has restarted, decides alike.
4. When it has ended, it waits in a bounded queue (`exporter`). What does not fit is dropped and counted. A batch goes
   out as bytes that `otlp` writes, over this project's own gRPC. Nobody ever waits for a collector.

    context.py   ids, W3C's traceparent, sampling: pure
    spans.py     spans, and the tracer that makes them
    otlp.py      from spans to bytes: pure
    exporter.py  the queue, and the collector
    calls.py     gRPC calls         requests.py   HTTP requests
"""
