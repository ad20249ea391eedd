"""Visitors of a playground, as programs: they ask one thing after another, as the page does."""

import http.client
import json
import random
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import NamedTuple

from lavae_jax.playground.engine import Json


class Answer(NamedTuple):
    what: str
    seconds: float
    error: str | None


class Visitor:
    def __init__(self, url: str, seed: int):
        self._host = urllib.parse.urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._host, timeout=60)
        self._random = random.Random(seed)
        self.answers: list[Answer] = []

    def ask(self, method: str, path: str, content: Json | None = None) -> Json | None:
        """The answer, or None where there is none; how long it took is noted."""
        headers = {"Content-Type": "application/json", "Origin": f"http://{self._host}"}
        body = None if content is None else json.dumps(content)
        before, answer, error = time.perf_counter(), None, None
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

    def stay(self, seconds: float, think: float) -> None:
        """Plays for so long, and thinks for so long, on average, after each answer."""
        end = time.perf_counter() + seconds
        models = self.ask("GET", "/models")
        model = self._random.choice(models["models"]) if models else None
        while model and time.perf_counter() < end:
            for _ in self._play(model):
                time.sleep(self._random.uniform(0, 2 * think))
                if time.perf_counter() > end:
                    return

    def _play(self, model: Json) -> Iterator[None]:
        """A scene is taken apart and edited; a pause after each answer."""
        name, seed = model["name"], self._random.randrange(2**31)
        kind = self._random.choice(["fresh", "prior"] if model["fresh"] else ["prior"])
        count = self._random.randint(0, 7)
        asked = {"model": name, "kind": kind, "count": count, "seed": seed}
        scene = self.ask("POST", "/scene", asked)
        yield
        found = scene and self.ask("POST", "/infer", {"model": name, "image": scene["image"]})
        yield
        if not found or not found["objects"]:
            return
        objects = found["objects"]
        chosen = self._random.choice(objects)
        start, direction = chosen["appearance"], model["directions"][0]
        for step in range(5):  # along a slider
            moved = [a + step * d for a, d in zip(start, direction, strict=True)]
            request = {"model": name, "kind": "decode", "appearance": moved}
            self.ask("POST", "/appearance", request)
            yield
        for asked in (
            {"kind": "other", "seed": seed},
            {"kind": "like", "seed": seed, "image": scene["image"], "location": chosen["location"]},
        ):
            self.ask("POST", "/appearance", {"model": name, **asked})
            yield
        edited = [{k: thing[k] for k in ("location", "appearance")} for thing in objects]
        self.ask("POST", "/render", {"model": name, "scene": {"objects": edited}})
        yield


def wait_until_all_are_warm(url: str) -> None:
    visitor = Visitor(url, 0)
    while (models := visitor.ask("GET", "/models")) and models["coming"]:
        time.sleep(0.5)


def visit(url: str, visitors: int, seconds: float, think: float) -> list[Answer]:
    """What so many visitors at once are answered."""
    all_of_them = [Visitor(url, seed) for seed in range(visitors)]
    threads = [
        threading.Thread(target=visitor.stay, args=(seconds, think)) for visitor in all_of_them
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answer for visitor in all_of_them for answer in visitor.answers]
