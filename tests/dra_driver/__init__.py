"""A driver of dynamic resource allocation whose devices are names: DRAPlugin, health and Registration over gRPC.

In a test's own process, on any stream or socket:

    driver = ToyDriver("toy.example.com")
    await nursery.start(Server(driver.services).serve_unix, socket)

As a program, for an agent that runs as one:

    python -m tests.dra_driver --socket … --registry ROOT/plugins_registry --state … --cdi … --log … --faults …

`state` has a file for each claim that is prepared, by its UID, and `cdi` a specification of its device: a container
that has it finds TOY_CLAIM in its environment. `faults` make calls fail, hang or lose their reply
(`tests.csi_driver.faults`).
"""

from tests.dra_driver.driver import ToyDriver, a_device

__all__ = ["ToyDriver", "a_device"]
