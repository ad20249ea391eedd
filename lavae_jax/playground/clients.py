"""Simulated clients of a playground: each sends one request after another, as the page does."""

import http.client
import json
import random
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple

from lavae_jax.playground.engine import Json


class Answer(NamedTuple):
    """A request and how it was answered.

    Attributes:
        what: path and kind of the request.
        seconds: latency.
        error: what went wrong, if anything.
    """

    what: str
    seconds: float
    error: str | None


class Client:
    """A simulated client.

    Attributes:
        answers: answers to all requests so far.
    """

    def __init__(self, url: str, seed: int):
        """Connects to a playground.

        Args:
            url: address of the page.
            seed: seed of the client's choices.
        """
        self._host = urllib.parse.urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._host, timeout=60)
        self._random = random.Random(seed)
        self.answers: list[Answer] = []

    def send(self, method: str, path: str, content: Json | None = None) -> Json | None:
        """Sends a request; its latency is added to `answers`.

        Args:
            method: HTTP method.
            path: path of the URL.
            content: the body, if any.

        Returns:
            The content of the answer; None if the request failed.
        """
        headers = {"Content-Type": "application/json", "Origin": f"http://{self._host}"}
        body = None if content is None else json.dumps(content)
        before, error = time.perf_counter(), None
        answer: Any = None
        try:
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
            answer = json.loads(response.read())
            if response.status != 200:
                answer, error = None, f"{response.status} {answer.get('error')}"
        except (OSError, http.client.HTTPException, ValueError) as problem:
            self._connection.close()
            error = repr(problem)
        what = f"{path} {(content or {}).get('kind', '')}".strip()
        self.answers.append(Answer(what, time.perf_counter() - before, error))
        return answer

    def run(self, seconds: float, think: float) -> None:
        """Sends requests until the time is up.

        Args:
            seconds: duration.
            think: mean pause after each request, in seconds.
        """
        end = time.perf_counter() + seconds
        models = self.send("GET", "/models")
        model = self._random.choice(models["models"]) if models else None
        while model and time.perf_counter() < end:
            for _ in self._session(model):
                time.sleep(self._random.uniform(0, 2 * think))
                if time.perf_counter() > end:
                    return

    def _session(self, model: Json) -> Iterator[None]:
        """Decomposes a scene and edits it; yields after each answer."""
        name, seed = model["name"], self._random.randrange(2**31)
        kind = self._random.choice(["fresh", "prior"] if model["fresh"] else ["prior"])
        count = self._random.randint(0, 7)
        request = {"model": name, "kind": kind, "count": count, "seed": seed}
        scene = self.send("POST", "/scene", request)
        yield
        inferred = scene and self.send("POST", "/infer", {"model": name, "image": scene["image"]})
        yield
        if not scene or not inferred or not inferred["objects"]:
            return
        objects = inferred["objects"]
        chosen = self._random.choice(objects)
        start, direction = chosen["appearance"], model["directions"][0]
        for step in range(5):  # along a slider
            moved = [a + step * d for a, d in zip(start, direction, strict=True)]
            request = {"model": name, "kind": "decode", "appearance": moved}
            self.send("POST", "/appearance", request)
            yield
        for request in (
            {"kind": "other", "seed": seed},
            {"kind": "like", "seed": seed, "image": scene["image"], "location": chosen["location"]},
        ):
            self.send("POST", "/appearance", {"model": name, **request})
            yield
        edited = [{k: thing[k] for k in ("location", "appearance")} for thing in objects]
        self.send("POST", "/render", {"model": name, "scene": {"objects": edited}})
        yield


def wait_until_warm(url: str) -> None:
    """Waits until all models are warmed up.

    Args:
        url: address of the page.
    """
    client = Client(url, 0)
    while (models := client.send("GET", "/models")) and models["coming"]:
        time.sleep(0.5)


def simulate(url: str, number: int, seconds: float, think: float) -> list[Answer]:
    """Runs concurrent clients.

    Args:
        url: address of the page.
        number: number of clients.
        seconds: duration.
        think: mean pause of a client after each request, in seconds.

    Returns:
        The answers that all clients received.
    """
    clients = [Client(url, seed) for seed in range(number)]
    threads = [threading.Thread(target=client.run, args=(seconds, think)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answer for client in clients for answer in client.answers]
