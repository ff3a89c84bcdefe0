"""OpenTelemetry's protocol for traces. What is sent is made in `trikubelet.tracing`."""
