"""trikubelet: a Kubernetes node agent on Trio. Read `trikubelet.agent` first."""

__version__ = "0.1.0"
