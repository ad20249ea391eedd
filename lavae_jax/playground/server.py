"""The playground's server: the page and its JSON API.

One thread computes; requests that arrive meanwhile wait, and are computed as a batch. The server
answers only requests to the hosts that it was started for, sent by its own page.
"""

import asyncio
import contextlib
import ipaddress
import json
import pathlib
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lavae_jax.playground.engine import SIZE, Engine, Json, Refused

STATIC = pathlib.Path(__file__).with_name("static")
ANY_ADDRESS = "*"  # among hosts: any numeric address
LARGEST_BODY = 8 * 1024 * 1024  # bytes
WAITING = 512  # the largest number of waiting requests
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


# --- batches of requests -----------------------------------------------------


class Batches:
    """Batches requests of one kind that wait at the same time; one thread computes them."""

    def __init__(self):
        """Starts without requests."""
        self._waiting: dict[Hashable, list[tuple[Callable, Json, asyncio.Future]]] = {}
        self._wake = asyncio.Event()

    async def submit(
        self, kind: Hashable, function: Callable[[Sequence[Json]], list], request: Json
    ):
        """Waits for the answer to a request.

        Args:
            kind: requests of the same kind may be computed together.
            function: takes a list of requests and returns a list of answers.
            request: the request.

        Returns:
            The answer.

        Raises:
            HTTPException: too many requests are waiting.
        """
        if sum(map(len, self._waiting.values())) >= WAITING:
            raise HTTPException(503, "Too many requests at once; try again in a moment.")
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(kind, []).append((function, request, future))
        self._wake.set()
        return await future

    async def run(self) -> None:
        """Computes batches until it is cancelled."""
        while True:
            await self._wake.wait()
            if not self._waiting:
                self._wake.clear()
                continue
            kind, waiting = next(iter(self._waiting.items()))
            del self._waiting[kind]
            batch, rest = waiting[:SIZE], waiting[SIZE:]
            if rest:
                self._waiting[kind] = rest  # behind the others
            await self._compute(batch)

    async def _compute(self, batch) -> None:
        function = batch[0][0]
        try:
            requests = [request for _, request, _ in batch]
            answers = await asyncio.to_thread(function, requests)
        except Exception as error:
            if len(batch) > 1:  # one request failed; the others are computed without it
                for one in batch:
                    await self._compute([one])
                return
            _resolve(batch[0][2], error=error)
            return
        for (_, _, future), answer in zip(batch, answers, strict=True):
            _resolve(future, answer=answer)


def _resolve(future: asyncio.Future, answer: Any = None, error: Exception | None = None) -> None:
    if future.done():  # the client has disconnected
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


# --- the application ---------------------------------------------------------


def make_app(engine: Engine, hosts: Sequence[str], ready: Callable[[], list[str]]) -> ASGIApp:
    """Makes the application.

    Args:
        engine: answers the requests.
        hosts: accepted values of the header Host, with the port.
        ready: returns the names of the models that are warmed up.

    Returns:
        The ASGI application.
    """
    batches = Batches()

    async def answer(request: Request, kinds: Mapping[Any, Callable]) -> Response:
        content = await _content(request)
        kind, model = content.get("kind"), content.get("model")
        if not isinstance(kind, str | None) or kind not in kinds:
            allowed = ", ".join(name or "absent" for name in kinds)
            raise Refused(f"kind must be one of {allowed}; the request has {kind!r}.")
        if not isinstance(model, str):
            raise Refused("The request names no model.")
        if model in engine.names() and model not in ready():
            raise Refused(f"{model} is still warming up; try again in a moment.")
        function = kinds[kind]
        return JSONResponse(await batches.submit((function.__name__, model), function, content))

    async def models(request: Request) -> Response:
        warm = ready()
        known = [engine.about(name) for name in warm]
        coming = [name for name in engine.names() if name not in warm]
        return JSONResponse({"models": known, "coming": coming})

    async def scene(request: Request) -> Response:
        return await answer(request, {"fresh": engine.fresh, "prior": engine.dream})

    async def preprocess(request: Request) -> Response:
        return await answer(request, {None: engine.preprocess})

    async def infer(request: Request) -> Response:
        return await answer(request, {None: engine.infer})

    async def render(request: Request) -> Response:
        return await answer(request, {None: engine.render})

    async def appearance(request: Request) -> Response:
        kinds = {"decode": engine.decode, "other": engine.other, "like": engine.like}
        return await answer(request, kinds)

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker = asyncio.create_task(batches.run())
        yield
        worker.cancel()

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/models", models),
            Route("/scene", scene, methods=["POST"]),
            Route("/preprocess", preprocess, methods=["POST"]),
            Route("/infer", infer, methods=["POST"]),
            Route("/render", render, methods=["POST"]),
            Route("/appearance", appearance, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={
            HTTPException: _explain,
            Refused: _explain,
            ClientDisconnect: _empty_answer,
            Exception: _internal_error,
        },
        lifespan=lifespan,
    )
    return _Guard(app, hosts)


async def _content(request: Request) -> Json:
    try:
        content = json.loads(await request.body())
    except (ValueError, UnicodeDecodeError, RecursionError):
        raise Refused("The request cannot be read.") from None
    if not isinstance(content, dict):
        raise Refused("The request cannot be read.")
    return content


async def _explain(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code)
    return JSONResponse({"error": str(error)}, 400)


async def _empty_answer(request: Request, error: Exception) -> Response:
    """Answers a client that has disconnected."""
    return Response(status_code=400)


async def _internal_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "Something went wrong; the server's log says what."}, 500)


class _Guard:
    """Refuses other hosts, other origins and long bodies, and adds headers to every answer.

    Starlette's TrustedHostMiddleware compares names only: it does not check ports, and cannot
    accept all addresses of this machine when the server listens on all of them.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]):
        self._app, self.hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *ours]}
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal:
            await JSONResponse({"error": refusal[1]}, refusal[0])(scope, receive, send_with_headers)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > LARGEST_BODY:
                raise HTTPException(413, "The request is too long.")
            return message

        await self._app(scope, receive_limited, send_with_headers)

    def _is_address(self, host: str) -> bool:
        """Whether a host is a numeric address with the right port, if these are accepted at all.

        Browsers omit port 80.
        """
        has_port = ":" in host.rpartition("]")[2]
        name, _, port = host.rpartition(":") if has_port else (host, "", "80")
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return f"{ANY_ADDRESS}:{port}" in self.hosts

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        if host not in self.hosts and not self._is_address(host):
            return 403, f"This server does not answer for {host}; see its --host."
        if origin and origin.partition("://")[2] != host:
            return 403, "Only the playground's own page may send requests."
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            return 413, "The request is too long."
        is_json = headers.get("content-type", "").partition(";")[0] == "application/json"
        if scope["method"] == "POST" and not is_json:
            return 415, "Requests must be JSON."
        return None
