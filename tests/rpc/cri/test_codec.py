"""The codec against plain betterproto (the same generated code on its own base class) and against Google's protobuf."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import io
import pickle
import re
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import betterproto
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.codec import Message
from trikubelet.rpc.cri.wire import read_varint, write_varint

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")  # fields of all kinds are given

PROTOS = Path(__file__).parents[3] / "protos"
CLASSES = tuple(
    name for name, cls in vars(v1).items() if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
)


PLAIN_BASE = "from dataclasses import dataclass\nfrom betterproto import Message"


def load_plain() -> types.ModuleType:
    """The generated module as if our base class did not exist."""
    source = Path(v1.__file__).read_text()
    source = re.sub(r"^(?=class \w+\(Message\))", "@dataclass(eq=False, repr=False)\n", source, flags=re.MULTILINE)
    module = types.ModuleType("plain_cri_v1")
    sys.modules[module.__name__] = module  # betterproto looks the types of fields up there
    exec(source.replace("from trikubelet.rpc.cri.codec import Message", PLAIN_BASE), vars(module))
    return module


plain = load_plain()

# What a message is made of, for either module: its class and its fields; a message among them is a Recipe again.
NUMBERS = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
}
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "double": st.floats(allow_nan=False).filter(lambda number: str(number) != "-0.0"),
    "string": st.text(max_size=8) | st.text("ab", min_size=120, max_size=300),
    "bytes": st.binary(max_size=8),
    **{name: numbers | st.integers(0, 300) for name, numbers in NUMBERS.items()},
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    cls: str
    fields: dict[str, Any]

    def make(self, module: Any) -> Any:
        return getattr(module, self.cls)(**{name: make(module, value) for name, value in self.fields.items()})


@dataclasses.dataclass(frozen=True)
class EnumRecipe:
    cls: str
    number: int

    def make(self, module: Any) -> Any:
        return getattr(module, self.cls).try_value(self.number)


def make(module: Any, value: Any) -> Any:
    if isinstance(value, Recipe | EnumRecipe):
        return value.make(module)
    return [make(module, item) for item in value] if isinstance(value, list) else value


def values(proto_type: str, hint: Any) -> st.SearchStrategy[Any]:
    if proto_type == "message":
        return recipes(hint.__name__)
    if proto_type == "enum":
        return st.builds(EnumRecipe, st.just(hint.__name__), st.sampled_from([int(member) for member in hint]))
    return SCALARS[proto_type]


@st.composite
def recipes(draw: st.DrawFn, name: str) -> Recipe:
    cls = getattr(v1, name)
    fields: dict[str, Any] = {}
    every = dataclasses.fields(cls)
    for field in (
        draw(st.lists(st.sampled_from(every), max_size=5, unique_by=lambda field: field.name)) if every else ()
    ):
        meta, hint = betterproto.FieldMetadata.get(field), cls._type_hint(field.name)
        arguments = getattr(hint, "__args__", ())
        if meta.map_types:
            key, value = (values(kind, argument) for kind, argument in zip(meta.map_types, arguments, strict=True))
            entries = draw(st.dictionaries(key, value, max_size=3))
            # betterproto loses an entry that is empty on both sides
            fields[field.name] = {key: value for key, value in entries.items() if key or value}
        elif arguments:
            fields[field.name] = draw(st.lists(values(meta.proto_type, arguments[0]), max_size=3))
        else:
            fields[field.name] = draw(values(meta.proto_type, hint))
    return Recipe(name, fields)


anything = st.sampled_from(CLASSES).flatmap(recipes)
thorough = settings(max_examples=examples(200), deadline=None)


@functools.cache
def google_classes() -> dict[str, Any]:
    """Google's classes, made from the same file, by our names for them."""
    protoc = pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools: pip install -e '.[dev]'")
    descriptors, pools, factory = (
        importlib.import_module(f"google.protobuf.{name}")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    with tempfile.NamedTemporaryFile() as out:
        options = [f"--proto_path={PROTOS}", f"--descriptor_set_out={out.name}", "runtime_v1.proto"]
        assert protoc.main(["protoc", *options]) == 0
        (file,) = descriptors.FileDescriptorSet.FromString(Path(out.name).read_bytes()).file
    pool = pools.DescriptorPool()
    pool.Add(file)
    found = {
        message.name.lower(): factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{message.name}"))
        for message in file.message_type
    }
    return {name: found[name.lower()] for name in CLASSES}


def test_every_field_of_every_class_has_a_codec() -> None:
    assert len(CLASSES) > 150
    for name in CLASSES:
        cls = getattr(v1, name)
        fields = [field.name for field in dataclasses.fields(cls)]
        assert [field for field, _ in cls._plan.writers] == fields, name


@given(anything)
@thorough
def test_messages_have_the_bytes_that_betterproto_gives_them(recipe: Recipe) -> None:
    ours, theirs = recipe.make(v1), recipe.make(plain)
    assert repr(ours) == repr(theirs)  # first, for writing a message fills betterproto's with its defaults
    assert bytes(ours) == bytes(theirs) == ours.SerializeToString()
    assert (len(ours), bool(ours)) == (len(theirs), bool(theirs))
    assert ours.to_dict() == theirs.to_dict()
    assert betterproto.serialized_on_wire(ours) == betterproto.serialized_on_wire(theirs)


@given(anything)
@thorough
def test_bytes_become_the_message_that_betterproto_makes_of_them(recipe: Recipe) -> None:
    data = bytes(recipe.make(plain))
    ours, theirs = getattr(v1, recipe.cls).FromString(data), getattr(plain, recipe.cls).FromString(data)
    assert (repr(ours), bytes(ours)) == (repr(theirs), bytes(theirs))
    assert presence(ours) == presence(theirs)
    assert ours == getattr(v1, recipe.cls)().from_dict(theirs.to_dict())


def presence(value: Any) -> Any:
    """Everything in a message, read, and for each message whether it is "on wire"."""
    if isinstance(value, betterproto.Message):
        fields = {field.name: presence(getattr(value, field.name)) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
        return (type(value).__name__, betterproto.serialized_on_wire(value), fields)
    return [presence(item) for item in value] if isinstance(value, list) else (type(value).__name__, value)


@given(anything)
@thorough
def test_google_reads_what_we_write_and_we_read_what_google_writes(recipe: Recipe) -> None:
    ours = recipe.make(v1)
    theirs = google_classes()[recipe.cls].FromString(bytes(ours))
    theirs.DiscardUnknownFields()  # there are none: otherwise something would be missing now
    again = type(ours).FromString(theirs.SerializeToString())
    assert again == ours
    assert len(again) == len(ours)
    assert google_classes()[recipe.cls].FromString(bytes(again)) == theirs


@pytest.mark.fuzz
@given(anything, st.data())
@settings(max_examples=examples(400), deadline=None)
def test_damaged_bytes_are_refused_or_read_as_google_reads_them(recipe: Recipe, data: st.DataObject) -> None:
    damaged = bytearray(bytes(recipe.make(v1)))
    assume(damaged)
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, len(damaged) - 1))
        damaged[where : where + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        assume(damaged)
    check_against_google(getattr(v1, recipe.cls), google_classes()[recipe.cls], bytes(damaged))


@pytest.mark.fuzz
@given(st.sampled_from(CLASSES), st.binary(max_size=40))
@settings(max_examples=examples(400), deadline=None)
def test_garbage_is_refused_or_read_as_google_reads_it(name: str, garbage: bytes) -> None:
    check_against_google(getattr(v1, name), google_classes()[name], garbage)


def take_entries(message: Any) -> None:
    """Google's C code takes a map's entry with a field that is not known for an unknown field of the message. Its Go
    code, which runtimes have, and ours take the entry without that field, and so does this."""
    factory, unknown = (
        importlib.import_module(f"google.protobuf.{name}") for name in ("message_factory", "unknown_fields")
    )
    left_out = list(unknown.UnknownFieldSet(message))
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            for one in left_out:
                if (one.field_number, one.wire_type) == (field.number, 2):
                    entry = factory.GetMessageClass(field.message_type).FromString(one.data)
                    getattr(message, field.name)[entry.key] = entry.value
        elif field.is_repeated:
            for item in getattr(message, field.name):
                take_entries(item)
        elif message.HasField(field.name):
            take_entries(getattr(message, field.name))


def check_against_google(cls: type[Message], google_cls: Any, data: bytes) -> None:
    decode_error = importlib.import_module("google.protobuf.message").DecodeError
    try:
        theirs = google_cls.FromString(data)
    except decode_error:
        with pytest.raises(ValueError):  # noqa: PT011 - the text depends on what is wrong
            cls.FromString(data)
        return
    try:
        ours = cls.FromString(data)
    except ValueError as error:
        # A group, of which proto3 has none; a field 0, which Google's skips in some versions and messages only.
        if "unknown wire type" in str(error) or "field 0 " in str(error):
            return
        raise
    take_entries(theirs)
    theirs.DiscardUnknownFields()
    without_unknown = google_cls.FromString(bytes(ours))
    without_unknown.DiscardUnknownFields()
    assert without_unknown == theirs


METADATA = v1.ContainerMetadata(name="main", attempt=300)


def a_container() -> v1.Container:
    return v1.Container(id="c1", metadata=METADATA, labels={"app": "web"}, created_at=-5)


def test_a_message_cut_short_is_refused_unless_it_is_cut_between_fields() -> None:
    data = bytes(a_container())
    whole = [v1.Container(), v1.Container(id="c1"), v1.Container(id="c1", metadata=METADATA)]
    whole.append(v1.Container(id="c1", metadata=METADATA, created_at=-5))
    ends = {len(container): container for container in whole}
    for length in range(len(data)):
        if length in ends:
            assert v1.Container.FromString(data[:length]) == ends[length]
        else:
            with pytest.raises(ValueError, match="byte"):
                v1.Container.FromString(data[:length])


def test_an_unknown_number_of_an_enum_is_kept_and_may_be_negative() -> None:
    for number in (7, -1):
        state = v1.Container.FromString(bytes(v1.Container(state=number))).state  # type: ignore[arg-type]
        assert (int(state), repr(state)) == (number, "ContainerState.None")


def test_unknown_fields_are_kept_and_sent_again() -> None:
    unknown = b"\xf2\x06\x02hi" + b"\xf9\x06abcdefgh" + b"\xfd\x06abcd" + b"\xf0\x06\x01"
    metadata = v1.ContainerMetadata.FromString(b"\x0a\x01a" + unknown + b"\x10\x02")
    assert (metadata.name, metadata.attempt) == ("a", 2)
    assert bytes(metadata) == b"\x0a\x01a\x10\x02" + unknown
    assert bytes(v1.Container.FromString(bytes(v1.Container(metadata=metadata))).metadata) == bytes(metadata)
    assert bytes(metadata.parse(b"\xf0\x06\x02")) == b"\x0a\x01a\x10\x02" + unknown + b"\xf0\x06\x02"


def test_a_known_field_of_another_wire_type_counts_as_unknown() -> None:
    container = v1.Container.FromString(b"\x08\x05")
    assert (container.id, bytes(container)) == ("", b"\x08\x05")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x0a\x05abc", "field 1 at byte 0 reaches to byte 7, the message has 5"),
        (b"\x0a", "Container of 1 bytes ends within a number"),
        (b"\x0a\xff", "Container of 2 bytes ends within a number"),
        (b"\x1a\x01\x0a", "ContainerMetadata of 1 bytes ends within a number"),
        (b"\x42\x01\x0a", "Container of 3 bytes ends within a number"),
        (b"\x0b", "unknown wire type 3 of field 1"),
        (b"\x38" + b"\xff" * 10, "longer than 10 bytes"),
        (b"\x02\x00", "numbered from 1"),
        (b"\x80\x80\x80\x80\x10\x00", "numbered from 1 to 536870911"),
        (b"\x0a\x01\xff", "utf-8"),
    ],
)
def test_what_is_not_a_message_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        v1.Container.FromString(data)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (v1.Container(created_at=2**64), "64 bits"),
        (v1.Container(id=5), "str"),  # type: ignore[arg-type]
        (v1.KeyValue(value="text"), "expected bytes, got str"),  # type: ignore[arg-type]
    ],
)
def test_values_that_do_not_fit_their_field_are_refused(message: v1.Container, problem: str) -> None:
    with pytest.raises((ValueError, TypeError), match=problem):
        bytes(message)


@given(st.integers(-(2**63), 2**64 - 1), st.binary(max_size=3))
def test_numbers_are_written_as_betterproto_writes_them(number: int, rest: bytes) -> None:
    data = write_varint(number)
    assert data == betterproto.encode_varint(number)
    assert read_varint(data + rest, 0) == (number % 2**64, len(data))


def test_numbers_are_cut_to_their_width() -> None:
    seventy_bits = b"\xff" * 9 + b"\x7f"
    assert v1.ContainerMetadata.FromString(b"\x10" + seventy_bits).attempt == 2**32 - 1
    assert v1.UInt64Value.FromString(b"\x08" + seventy_bits).value == 2**64 - 1
    assert v1.Int64Value.FromString(b"\x08" + seventy_bits).value == -1


def test_a_packed_list_may_come_in_pieces_or_not_packed() -> None:
    in_pieces = b"\x12\x02\x01\x02" + b"\x12\x01\x03"
    assert v1.PortForwardRequest.FromString(in_pieces).port == [1, 2, 3]
    assert v1.PortForwardRequest.FromString(b"\x10\x01\x10\x02").port == [1, 2]


def test_a_message_in_pieces_is_merged() -> None:
    data = bytes(v1.Container(metadata=v1.ContainerMetadata(name="a", attempt=1)))
    data += bytes(v1.Container(metadata=v1.ContainerMetadata(attempt=2)))
    assert v1.Container.FromString(data).metadata == v1.ContainerMetadata(name="a", attempt=2)


def test_a_map_entry_that_is_empty_on_both_sides_is_sent() -> None:
    assert v1.Container.FromString(bytes(v1.Container(labels={"": ""}))).labels == {"": ""}


def test_a_map_entry_is_taken_without_a_field_that_is_not_known() -> None:
    assert v1.PodSandboxStatsFilter.FromString(b"\x12\x05\x0a\x01a00").label_selector == {"a": ""}


def test_a_nested_message_that_was_not_set_reads_as_an_empty_one_and_is_kept() -> None:
    status = v1.PodSandboxStatus()
    network = status.network
    assert network is status.network
    assert (network.ip, betterproto.serialized_on_wire(network), bytes(status)) == ("", False, b"")
    network.ip = "10.0.0.1"
    assert betterproto.serialized_on_wire(network)
    assert v1.PodSandboxStatus.FromString(bytes(status)).network.ip == "10.0.0.1"


def test_lists_and_maps_that_were_read_belong_to_their_message() -> None:
    one, other = v1.ContainerConfig(), v1.ContainerConfig()
    one.command.append("sh")
    one.labels["a"] = "b"
    assert (other.command, other.labels) == ([], {})
    assert v1.ContainerConfig.FromString(bytes(one)) == v1.ContainerConfig(command=["sh"], labels={"a": "b"})


def test_an_empty_message_is_sent_when_it_was_received_or_assigned_to() -> None:
    received = v1.LinuxContainerSecurityContext.FromString(b"\x2a\x00")
    assert betterproto.serialized_on_wire(received.run_as_user)
    assert bytes(received) == b"\x2a\x00"
    assert bytes(v1.LinuxContainerSecurityContext(run_as_user=v1.Int64Value())) == b""
    deep = v1.CreateContainerRequest()
    deep.config.linux.security_context.run_as_user.value = 0
    again = v1.CreateContainerRequest.FromString(bytes(deep))
    assert betterproto.serialized_on_wire(again.config.linux.security_context.run_as_user)


def test_is_set_tells_what_was_given() -> None:
    container = v1.Container(id="a", created_at=0)
    assert [name for name in ("id", "created_at", "labels", "image") if container.is_set(name)] == ["id", "created_at"]


def test_constructors_take_fields_by_name() -> None:
    metadata = v1.ContainerMetadata(name="main", attempt=2)
    assert (metadata.name, metadata.attempt) == ("main", 2)
    assert dataclasses.replace(a_container(), id="c2").id == "c2"
    with pytest.raises(TypeError, match="Container has no field colour"):
        v1.Container(colour="red")  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="colour"):
        v1.Container().colour  # type: ignore[attr-defined]  # noqa: B018


def test_messages_are_copied_pickled_and_written_to_streams() -> None:
    container = a_container()
    for same in (copy.copy(container), copy.deepcopy(container), pickle.loads(pickle.dumps(container))):
        assert same is not container
        assert (same, repr(same), bytes(same)) == (container, repr(container), bytes(container))
    assert copy.deepcopy(container).labels is not container.labels
    stream = io.BytesIO()
    container.dump(stream, delimit=betterproto.SIZE_DELIMITED)  # type: ignore[arg-type]  # betterproto's hint
    container.dump(stream)
    stream.seek(0)
    assert v1.Container().load(stream, size=betterproto.SIZE_DELIMITED) == container
    assert v1.Container().load(stream) == container
    with pytest.raises(ValueError, match="expected a Container of 5 bytes, the stream has 1"):
        v1.Container().load(io.BytesIO(b"x"), size=5)


def test_parsing_into_a_message_adds_to_it() -> None:
    container = v1.Container(id="a", labels={"a": "1"})
    assert container.parse(bytes(v1.Container(created_at=3, labels={"b": "2"}))) is container
    assert container == v1.Container(id="a", created_at=3, labels={"a": "1", "b": "2"})


def test_a_subclass_may_have_more_fields() -> None:
    class Extended(v1.Int64Value):
        note: str = betterproto.string_field(2)

    Extended.__module__ = v1.__name__
    assert bytes(Extended(value=1, note="a")) == b"\x08\x01\x12\x01a"


def test_a_field_without_a_codec_is_named() -> None:
    class Strange(Message):
        number: int = betterproto.fixed32_field(1)

    Strange.__module__ = v1.__name__
    with pytest.raises(TypeError, match=r"Strange\.number.*fixed32"):
        Strange()


def test_an_optional_field_is_sent_when_it_was_given_or_received() -> None:
    class Optional(Message):
        number: int | None = betterproto.int32_field(1, optional=True)
        text: str | None = betterproto.string_field(2, optional=True)

    Optional.__module__ = v1.__name__
    assert (Optional().number, bytes(Optional())) == (None, b"")
    given = Optional(number=0, text="")
    assert bytes(given) == b"\x08\x00\x12\x00"
    assert Optional.FromString(bytes(given)) == given
    received = Optional.FromString(b"\x12\x01a")
    assert (received.number, received.text) == (None, "a")
