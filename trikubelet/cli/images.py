"""`trikubelet images`: what the runtime can start.

`list` and `import` ask the agent where one runs. The others, and those two without an agent, work on the embedded
runtime's image store themselves: it is a folder that several processes may use at a time, so they serve an agent,
`trikubelet runtime serve`, and a runtime that is yet to start.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError
from trikubelet.cli.output import echo, print_json, print_table
from trikubelet.cli.root_dir import agent_root_dir_option, registry_hosts_option
from trikubelet.embedded.registry.progress import human_size

if TYPE_CHECKING:
    from trikubelet.embedded.images.model import StoredImage
    from trikubelet.embedded.images.store import ImageStore
    from trikubelet.embedded.registry.progress import PullProgress

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_EMBEDDED = "trikubelet-embedded"


def _root_options(function: F) -> F:
    """Adds `--root-dir` and `--runtime-root`; the command gets both."""
    option = click.option(
        "--runtime-root",
        type=click.Path(path_type=Path),
        help="The state of an embedded runtime (runtime serve --root), instead of an agent's.",
    )
    return option(agent_root_dir_option(function))


@click.group(short_help="List, pull, import and remove images.")
def images() -> None:
    """The images of the agent's runtime."""


@images.command("list")
@_root_options
def list_images(root_dir: Path, runtime_root: Path | None) -> None:
    """List the images of the agent's runtime, or of an embedded runtime without an agent."""
    client = AgentClient(root_dir)
    if runtime_root is None and (client.socket.exists() or not (root_dir / "runtime").exists()):
        answer = client.get("/images")
    else:
        with _store(root_dir, runtime_root) as store:
            answer = [_document(image) for image in store.list()]
    print_table(("IMAGE", "ID", "SIZE"), [_row(image) for image in answer])


@images.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@_root_options
def import_images(file: Path, root_dir: Path, runtime_root: Path | None) -> None:
    """Import an OCI or docker archive (plain or compressed) into the embedded runtime's images; - is stdin."""
    client = AgentClient(root_dir)
    with _archive(file) as path:
        if runtime_root is None and (client.socket.exists() or not (root_dir / "runtime").exists()):
            answer = client.post("/images/import", {"path": str(path)})
        else:
            with _store(root_dir, runtime_root) as store:
                answer = _run(partial(store.import_archive, path))
                if runtime_root is None:
                    _open_to_all_pods(root_dir, store.ids_of(answer))
    for reference in answer:
        echo(f"imported {reference}")


@images.command("pull")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--username", "-u", help="For the registry. The password is asked for, or read from stdin.")
@registry_hosts_option
@_root_options
def pull_images(
    names: tuple[str, ...],
    username: str | None,
    hosts_dirs: tuple[Path, ...],
    root_dir: Path,
    runtime_root: Path | None,
) -> None:
    """Pull images from their registries. An imported image of the same name loses that name."""
    from trikubelet.clock import SystemClock
    from trikubelet.embedded.images.reference import Reference
    from trikubelet.embedded.registry.credentials import NO_CREDENTIALS, Credentials
    from trikubelet.embedded.registry.hosts import DEFAULT_HOSTS_DIRS
    from trikubelet.embedded.registry.puller import Puller

    credentials = NO_CREDENTIALS
    if username is not None:
        interactive = sys.stdin.isatty()
        password = click.prompt("Password", hide_input=True, err=True) if interactive else sys.stdin.readline()
        credentials = Credentials(username, password.rstrip("\r\n"))
    with _store(root_dir, runtime_root) as store:
        puller = Puller(store, clock=SystemClock(), hosts_dirs=hosts_dirs or DEFAULT_HOSTS_DIRS)
        for name in names:
            reference = _refused(Reference.parse, name)
            image_id = _run(partial(_pull_with_bar, puller, partial(puller.pull, reference, credentials)))
            if runtime_root is None:
                _open_to_all_pods(root_dir, {str(reference): image_id})
            echo(f"pulled {reference} ({image_id})")


@images.command("inspect")
@click.argument("name")
@_root_options
def inspect_image(name: str, root_dir: Path, runtime_root: Path | None) -> None:
    """Show an image as JSON: names, digests, layers and configuration."""
    with _store(root_dir, runtime_root) as store:
        image = _found(store, name)
        document = {
            **_document(image),
            "imported_at": image.imported_at.isoformat() if image.imported_at else None,
            "pulled": list(image.pulled),
            "layers": [str(layer) for layer in image.layers],
            "layer_format": image.layer_format.value,
            "spec": store.spec(image),
        }
    print_json(document, indent=2)


@images.command("tag")
@click.argument("name")
@click.argument("new_name")
@_root_options
def tag_image(name: str, new_name: str, root_dir: Path, runtime_root: Path | None) -> None:
    """Give the image NAME another name."""
    from trikubelet.embedded.images.reference import Reference

    with _store(root_dir, runtime_root) as store:
        _found(store, name)
        reference = _refused(Reference.parse, new_name)
        if not reference.tag:
            raise CommandError(f"{new_name!r}: expected a name with a tag, not with a digest")
        _run(partial(store.tag, name, reference))
        echo(f"tagged {reference}")


@images.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_root_options
def remove_images(names: tuple[str, ...], root_dir: Path, runtime_root: Path | None) -> None:
    """Remove images that no container uses. If an image has other names, it stays under those."""
    with _store(root_dir, runtime_root) as store:
        for name in names:
            image = _found(store, name)
            if _run(partial(store.untag, name)):
                echo(f"untagged {name}")
                continue
            _run(partial(store.remove, name, users=_users(root_dir, runtime_root)))
            echo(f"removed {image.name}")


@images.command("save")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="The archive.  [default: stdout]")
@_root_options
def save_images(names: tuple[str, ...], output: Path | None, root_dir: Path, runtime_root: Path | None) -> None:
    """Write images as an OCI archive, for `images import`, `ctr images import` or `docker load`."""
    from trikubelet.embedded.images.save import SavedName

    if output is None and sys.stdout.isatty():
        raise CommandError("an archive is nothing for a terminal: name a file with --output")
    with _store(root_dir, runtime_root) as store:
        found: dict[str, SavedName] = {}
        for name in names:
            image = _found(store, name)
            if image.is_host:
                raise CommandError(f"{image.name} is this machine's own root filesystem, and cannot be saved")
            wanted = tuple(tag for tag in image.repo_tags if _same_name(tag, name))
            before = found[image.id].names if image.id in found else ()
            found[image.id] = SavedName(image, (*before, *wanted))
        if output is None:
            _run(partial(store.save, list(found.values()), sys.stdout.buffer))
            return
        part = output.with_name(f"{output.name}.part")
        try:
            with part.open("wb") as file:
                _run(partial(store.save, list(found.values()), file))
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)
        echo(f"saved {output}")


@images.command("prune")
@click.option("--all", "-a", "all_unused", is_flag=True, help="Also images with a name.")
@_root_options
def prune_images(all_unused: bool, root_dir: Path, runtime_root: Path | None) -> None:
    """Remove images without a name that no container uses."""
    with _store(root_dir, runtime_root) as store:
        users = _users(root_dir, runtime_root)
        before = store.usage().used_bytes
        for image in store.list():
            if image.pinned or users(image.id) or (image.repo_tags and not all_unused):
                continue
            _run(partial(store.remove, image.id, users=users))
            echo(f"removed {image.name}")
        _run(store.collect_garbage)
        echo(f"freed {human_size(max(0, before - store.usage().used_bytes))}")


# -- the store


@contextmanager
def _store(root_dir: Path, runtime_root: Path | None) -> Iterator[ImageStore]:
    """The embedded runtime's image store. Raises CommandError where the agent runs on another runtime."""
    from trikubelet.clock import SystemClock
    from trikubelet.embedded.images.store import ImageStore

    if runtime_root is None:
        client = AgentClient(root_dir)
        name = client.get("/version").get("runtime_name", _EMBEDDED) if client.socket.exists() else _EMBEDDED
        if name != _EMBEDDED:
            raise CommandError(f"the agent runs on {name}: use its own tools (for containerd: ctr -n k8s.io images)")
    root = _runtime_root(root_dir, runtime_root)
    try:
        yield ImageStore(root / "images", clock=SystemClock())
    except OSError as error:
        raise CommandError(f"the image store in {root} cannot be used: {error}") from None


def _runtime_root(root_dir: Path, runtime_root: Path | None) -> Path:
    return root_dir / "runtime" if runtime_root is None else Path.cwd() / runtime_root


def _open_to_all_pods(root_dir: Path, image_refs: Mapping[str, str]) -> None:
    """What the administrator brings, ids by full names, counts as preloaded, whatever was pulled before."""
    from trikubelet.clock import SystemClock
    from trikubelet.runtime.images.pull_records.model import VerificationPolicy
    from trikubelet.runtime.images.pull_records.records import PullRecords
    from trikubelet.runtime.images.pull_records.store import RecordStore

    PullRecords(RecordStore(root_dir), VerificationPolicy(), SystemClock()).imported(image_refs)


def _users(root_dir: Path, runtime_root: Path | None) -> Callable[[str], list[str]]:
    from trikubelet.embedded.records import image_users

    root = _runtime_root(root_dir, runtime_root)
    return lambda image_id: image_users(root).get(image_id, [])


def _run(work: Callable[[], Awaitable[T]]) -> T:
    """Do something asynchronous. What the store refuses is a CommandError. Only warnings are logged."""
    import trio

    from trikubelet.telemetry.logs import only_warnings

    with only_warnings():
        return _refused(lambda: trio.run(work))


def _refused(work: Callable[..., T], *arguments: Any) -> T:
    from trikubelet.embedded.images.errors import ImageError

    try:
        return work(*arguments)
    except ImageError as error:
        raise CommandError(str(error)) from None


def _found(store: ImageStore, name: str) -> StoredImage:
    image = store.resolve(name)
    if image is None:
        raise CommandError(f"there is no image {name!r}")
    return image


def _same_name(tag: str, name: str) -> bool:
    from trikubelet.embedded.images.errors import InvalidReferenceError
    from trikubelet.embedded.images.reference import Reference

    try:
        return str(Reference.parse(name)) == tag
    except InvalidReferenceError:  # an id
        return False


@contextmanager
def _archive(file: Path) -> Iterator[Path]:
    """The archive as a file: stdin is written to one first."""
    if str(file) != "-":
        yield file.resolve()
        return
    with tempfile.NamedTemporaryFile(prefix="trikubelet-import-", dir="/var/tmp") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(copy.name)


async def _pull_with_bar(puller: Any, pull: Callable[[], Awaitable[str]]) -> str:
    """Pull, with a bar on a terminal."""
    import trio

    from trikubelet.scopes import running

    if not sys.stderr.isatty():
        return await pull()

    async def show(*, task_status: trio.TaskStatus[None]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("asking the registry", total=None)
            task_status.started()
            while True:
                for progress in puller.progress():
                    bar.update(task, **_bar_state(progress))
                await trio.sleep(0.1)

    async with running(show):
        return await pull()


def _bar_state(progress: PullProgress) -> dict[str, Any]:
    if not progress.known:
        return {"description": "asking the registry"}
    layers = f"{progress.layers_done}/{progress.layers} layers"
    return {"description": layers, "total": progress.total_bytes, "completed": progress.received_bytes}


# -- rows


def _document(image: StoredImage) -> dict[str, Any]:
    """As the agent's API tells of an image."""
    return {
        "id": image.id,
        "repo_tags": list(image.repo_tags),
        "repo_digests": list(image.repo_digests),
        "size": image.size,
        "pinned": image.pinned,
    }


def _row(image: dict[str, Any]) -> tuple[str, str, str]:
    names = image.get("repo_tags") or image.get("repo_digests") or ["<none>"]
    identity = str(image.get("id", "")).removeprefix("sha256:")[:12]
    size = int(image.get("size") or 0)
    # `localhost/host` takes no room, and says one byte since clients take an image without a size for broken.
    return ", ".join(names), identity, human_size(size) if size > 1 else "-"
