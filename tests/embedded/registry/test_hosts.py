from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.embedded.registry.errors import HostsFileError
from trikubelet.embedded.registry.hosts import default_host, find_hosts, is_loopback, parse_hosts_file

if TYPE_CHECKING:
    from pathlib import Path


def bases(registry: str, text: str, folder: Path) -> list[str]:
    return [host.base for host in parse_hosts_file(registry, text, folder)]


@pytest.mark.parametrize(
    ("registry", "base", "skip_verify", "fallback"),
    [
        ("docker.io", "https://registry-1.docker.io/v2", False, False),
        ("quay.io", "https://quay.io/v2", False, False),
        ("registry.example:80", "https://registry.example:80/v2", False, False),
        ("localhost", "https://localhost/v2", True, False),
        ("localhost:443", "https://localhost:443/v2", True, False),
        ("localhost:80", "http://localhost:80/v2", False, False),
        ("127.0.0.1:5000", "https://127.0.0.1:5000/v2", True, True),
        ("[::1]:5000", "https://[::1]:5000/v2", True, True),
    ],
)
def test_how_a_registry_is_reached_without_configuration(
    registry: str, base: str, skip_verify: bool, fallback: bool
) -> None:
    host = default_host(registry)
    assert (host.base, host.skip_verify, host.plain_http_fallback) == (base, skip_verify, fallback)


def test_only_this_machine_is_loopback() -> None:
    assert not any(map(is_loopback, ["localhost.example", "128.0.0.1:5000", "example.localhost.", "[::2]:1"]))


def test_the_first_folder_that_exists_counts(tmp_path: Path) -> None:
    for name in ("_default", "r.example:5000", "r.example_5000_"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hosts.toml").write_text(f'[host."https://{name.replace(":", "-")}.example"]')
        assert find_hosts("r.example:5000", [tmp_path / "absent", tmp_path])[0].host.startswith(name.replace(":", "-"))
    assert find_hosts("other.example", [tmp_path])[0].host == "_default.example"


def test_mirrors_come_in_their_order_and_the_registry_last(tmp_path: Path) -> None:
    text = """
        [host."https://b.example"]
          capabilities = ["pull"]
        [host."http://a.example:8080/cache"]
        [host."https://c.example/v2/library"]
          override_path = true
        [host."https://b.example".header]
          x-one = "1"
          x-two = ["2", "3"]
    """
    hosts = parse_hosts_file("docker.io", text, tmp_path)
    assert [host.base for host in hosts] == [
        "https://b.example/v2",
        "http://a.example:8080/cache/v2",
        "https://c.example/v2/library",
        "https://registry-1.docker.io/v2",
    ]
    assert [host.namespace for host in hosts] == ["docker.io"] * 3 + [""]
    assert (hosts[0].pulls, hosts[0].resolves) == (True, False)
    assert hosts[0].headers == (("x-one", "1"), ("x-two", "2"), ("x-two", "3"))


def test_the_server_may_be_another_one(tmp_path: Path) -> None:
    assert bases("r.example", 'server = "mirror.example/r"', tmp_path) == ["https://mirror.example/r/v2"]
    (own,) = parse_hosts_file("docker.io", 'server = "https://registry-1.docker.io"', tmp_path)
    assert own.namespace == ""


def test_certificates_are_found_beside_the_file(tmp_path: Path) -> None:
    text = 'ca = "a.crt"\nclient = [["c.cert", "c.key"], "both.pem"]\ndial_timeout = "1m30s"\nskip_verify = true'
    (host,) = parse_hosts_file("r.example", text, tmp_path)
    assert host.authorities == (tmp_path / "a.crt",)
    assert host.client_certificates == ((tmp_path / "c.cert", tmp_path / "c.key"), (tmp_path / "both.pem", None))
    assert (host.dial_timeout, host.skip_verify) == (90, True)


def test_docker_s_way_of_certificates_is_read_where_there_is_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "r.example"
    folder.mkdir()
    for name in ("a.crt", "c.cert", "c.key"):
        (folder / name).touch()
    (host,) = find_hosts("r.example", [tmp_path])
    assert host.authorities == (folder / "a.crt",)
    assert host.client_certificates == ((folder / "c.cert", folder / "c.key"),)


def test_whoever_names_an_authority_for_loopback_wants_it_looked_at(tmp_path: Path) -> None:
    (host,) = parse_hosts_file("127.0.0.1:5000", 'ca = "a.crt"', tmp_path)
    assert (host.scheme, host.skip_verify) == ("https", False)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("server =", "expected TOML"),
        ("server = 7", "'server'"),
        ("host = 7", "'host'"),
        ('host."https://a" = 7', "a table"),
        ('[host."ftp://a"]', "http://HOST"),
        ('[host."https://u:p@a"]', "http://HOST"),
        ('[host."https://a:port"]', "a URL"),
        ('capabilities = ["fly"]', "pull, resolve or push"),
        ("ca = 7", "'ca'"),
        ('client = [["one"]]', "'client'"),
        ("client = 7", "'client'"),
        ("skip_verify = 1", "true or false"),
        ('dial_timeout = "soon"', "a duration"),
        ("dial_timeout = 7", "a duration"),
        ("header = 7", "a table"),
        ('header.x = "a\\nb"', "one line"),
        ("header.x = 7", "'x'"),
    ],
)
def test_what_cannot_be_used_is_told_with_the_file(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(HostsFileError) as caught:
        parse_hosts_file("r.example", text, tmp_path)
    assert word in str(caught.value)
    assert str(tmp_path / "hosts.toml") in str(caught.value)


@pytest.mark.fuzz
@given(
    st.dictionaries(
        st.sampled_from(["server", "host", "ca", "client", "capabilities", "header", "dial_timeout", "skip_verify"]),
        st.sampled_from(
            ['""', "7", "true", "[]", '["a"]', '[["a", "b"]]', '{a = "b"}', '{"https://x" = {ca = 3}}', "[[]]"]
        ),
    )
)
def test_every_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, fields: dict[str, str]) -> None:
    text = "\n".join(f"{key} = {value}" for key, value in fields.items())
    try:
        hosts = parse_hosts_file("r.example", text, tmp_path_factory.getbasetemp())
    except HostsFileError:
        return
    assert hosts
