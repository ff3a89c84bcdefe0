"""gRPC health checks: generated messages and stub."""
