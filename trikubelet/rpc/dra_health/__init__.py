"""Health of the devices of such plugins: generated messages, and the stub and the base of the service (v1alpha1)."""
