"""What the agent says to a plugin, and what it takes for an answer."""

from __future__ import annotations

import json

import pytest

from trikubelet.runtime.images.credentials.plugin_protocol import (
    PluginError,
    PluginResponse,
    decode_response,
    encode_request,
)

V1 = "credentialprovider.kubelet.k8s.io/v1"
AUTH = {"*.registry.io": {"username": "user", "password": "hush"}}


def response(**changes: object) -> bytes:
    fields = {
        "kind": "CredentialProviderResponse",
        "apiVersion": V1,
        "cacheKeyType": "Registry",
        "cacheDuration": "1m",
        "auth": AUTH,
        **changes,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def problem_of(raw: bytes) -> str:
    with pytest.raises(PluginError) as caught:
        decode_response(raw, V1)
    assert "hush" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1"])
def test_a_request_names_the_image(version: str) -> None:
    assert encode_request(f"credentialprovider.kubelet.k8s.io/{version}", "test.registry.io/foobar") == (
        b'{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/'
        + version.encode()
        + b'","image":"test.registry.io/foobar"}\n'
    )


def test_a_request_may_hold_a_token_and_annotations() -> None:
    request = encode_request(V1, "a.io/b", "service-account-token", {"domain.io/b": "2", "domain.io/a": "1"})
    assert request == (
        b'{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.io/b",'
        b'"serviceAccountToken":"service-account-token",'
        b'"serviceAccountAnnotations":{"domain.io/a":"1","domain.io/b":"2"}}\n'
    )


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1"])
def test_an_answer_has_logins_and_how_long_they_hold(version: str) -> None:
    version = f"credentialprovider.kubelet.k8s.io/{version}"
    answer = decode_response(response(apiVersion=version), version)
    assert (answer.cache_key_type, answer.cache_duration) == ("Registry", 60.0)
    ((location, login),) = answer.logins.items()
    assert (location, login.username, login.password) == ("*.registry.io", "user", "hush")
    assert "hush" not in repr(answer)


@pytest.mark.parametrize("absent", [..., None])
def test_an_answer_may_leave_out_how_long_it_holds_and_have_no_logins(absent: object) -> None:
    answer = decode_response(response(cacheDuration=absent, auth=absent), V1)
    assert answer == PluginResponse("Registry", None, {})


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"hush", "error reading GVK from response: no JSON at line 1 column 1"),
        (b'"hush"', "error reading GVK from response: the response is no JSON object"),
        (response(apiVersion=["hush"]), "error reading GVK from response: apiVersion is no string"),
        (
            response(apiVersion=f"{V1}beta1"),
            f"apiVersion from credential plugin response did not match expected apiVersion:{V1}, "
            f"actual apiVersion:{V1}beta1",
        ),
        (
            response(apiVersion="password=hush"),
            f"apiVersion from credential plugin response did not match expected apiVersion:{V1}, "
            "actual apiVersion:(not shown)",
        ),
        (
            response(cacheKeyType="Everything"),
            "credential provider plugin did not return a valid cacheKeyType: Everything",
        ),
        (response(cacheKeyType=...), "credential provider plugin did not return a valid cacheKeyType: "),
    ],
)
def test_an_answer_of_another_kind_is_refused(raw: bytes, problem: str) -> None:
    assert problem_of(raw) == problem


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (response(kind="hush"), "kind is not CredentialProviderResponse"),
        (
            response(token="hush"),
            "the response has fields besides apiVersion, auth, cacheDuration, cacheKeyType, kind",
        ),
        (response(cacheDuration="hush"), 'cacheDuration is no duration such as "1m30s"'),
        (response(cacheDuration=60), "cacheDuration is no string"),
        (response(auth=["hush"]), "auth is no JSON object"),
        (response(auth={"a.io": "hush"}), "an entry of auth is no JSON object"),
        (response(auth={"a.io": {"password": 5}}), "password is no string"),
        (response(auth={"a.io": {"pasword": "hush"}}), "an entry of auth has fields besides password, username"),
    ],
)
def test_a_malformed_answer_is_refused(raw: bytes, problem: str) -> None:
    assert problem_of(raw) == f"error decoding credential provider plugin response from stdout: {problem}"
