"""A device plugin whose devices are names: DevicePlugin and Registration over gRPC, and every way to get them wrong.

In a test's own process, on any stream or socket:

    plugin = ToyPlugin("toy.example.com/brick", ["a", "b"])
    await nursery.start(Server([plugin]).serve_unix, folder / "toy.sock")
    await register(folder / "kubelet.sock", plugin.resource, "toy.sock")
    plugin.tell([Brick("a"), Brick("b", healthy=False)])

As a program, for an agent that runs as one:

    python -m tests.device_plugin --folder ROOT/device-plugins --devices bricks.json --log calls.jsonl
    python -m tests.device_plugin --registry ROOT/plugins_registry --socket … --devices bricks.json

The file of devices says how each does, `{"a": "Healthy", "b": "Unhealthy"}`, and is read again when it is replaced. In
the folder of device plugins the program registers anew whenever `kubelet.sock` is made anew, as plugins do.

A container that gets the devices a and b finds /dev/brick-a and /dev/brick-b, which are /dev/null, and `BRICKS=a,b`.
With `--toolbox FOLDER` it has that folder, too, as /toolbox.
"""

from tests.device_plugin.plugin import Brick, Introduction, ToyPlugin, register

__all__ = ["Brick", "Introduction", "ToyPlugin", "register"]
