"""Plugins of dynamic resource allocation: generated messages, and the stub and the base of their service (v1)."""
