"""httpGet probes: a status from 200 to 399 is success (kubelet: pkg/probe/http)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trikubelet.http.client.request import HTTPRequestError, http_get_request
from trikubelet.probes.types import Outcome, ProbeAnswer

if TYPE_CHECKING:
    from trikubelet.api import HTTPGetAction
    from trikubelet.http.client.get import HTTPResponse
    from trikubelet.probes.types import ProbeTarget


async def ask_http(target: ProbeTarget, action: HTTPGetAction, timeout: float) -> ProbeAnswer:
    """Ask the server, `timeout` seconds for all of it. The host is the pod's address unless the action names one.

    No answer is a failure. An error, which says nothing about the container, is a port that is none, a pod without an
    address, and a body that breaks off or does not end in time. Cancelling closes the connection.
    """
    from trikubelet.http.client.get import HTTPGetError, http_get  # with ssl, and few pods need it

    if not (action.host or target.pod_ip):
        return ProbeAnswer(Outcome.UNKNOWN, error="the pod has no IP address")
    try:
        request = http_get_request(action, target.container, target.pod_ip, "probe")
    except HTTPRequestError as error:
        return ProbeAnswer(Outcome.UNKNOWN, error=error.message)
    try:
        response = await http_get(request, timeout=timeout, connect_timeout=math.inf, skip_long_body=False)
    except HTTPGetError as error:
        return ProbeAnswer(Outcome.FAILURE, str(error))
    return _judged(response)


def _judged(response: HTTPResponse) -> ProbeAnswer:
    if response.body_problem:
        return ProbeAnswer(Outcome.FAILURE, error=response.body_problem)
    if not 200 <= response.status < 400:
        # Without the body: events are read by more people than the server answers to.
        return ProbeAnswer(Outcome.FAILURE, f"HTTP probe failed with statuscode: {response.status}")
    body = response.body.decode(errors="replace")
    if response.status >= 300:
        return ProbeAnswer(Outcome.WARNING, f"Probe terminated redirects, Response body: {body}")
    return ProbeAnswer(Outcome.SUCCESS, body)
