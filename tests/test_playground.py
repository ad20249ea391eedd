"""The playground: its answers, its refusals, and the page in a real browser."""

import asyncio
import base64
import contextlib
import json
import shutil
import socket
import tempfile
import threading
import time

import handmade
import numpy as np
import pytest
import uvicorn
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient

from lavae_jax.playground import engine, server
from lavae_jax.playground.engine import Engine, Refused

NAME, HOST = "handmade", "127.0.0.1:8777"
CANVAS = (64, 64)
SCENE = ((20, 30, False), (40, 44, True))  # a pixel, and a pair of them


def draw(name, count, seed):
    """The fresh scene of any number of objects; and random pixels for the directions."""
    if count == 3:
        return 255 * handmade.picture(*SCENE, canvas=CANVAS).astype(np.uint8)
    cells = np.random.default_rng(seed).permutation(49)[:count]
    things = [(4 + 8 * (k // 7), 4 + 8 * (k % 7), bool(k % 2)) for k in cells]
    return 255 * handmade.picture(*things, canvas=CANVAS).astype(np.uint8)


@pytest.fixture(scope="module")
def made():
    made = Engine({NAME: handmade.model()}, draw)
    made.warm(NAME)
    return made


@pytest.fixture(scope="module")
def client(made):
    app = server.make_app(made, [HOST], lambda: [NAME])
    with TestClient(app, base_url=f"http://{HOST}", raise_server_exceptions=False) as client:
        yield client


def image_of(*things):
    return engine.pack(handmade.picture(*things, canvas=CANVAS))


def test_files_are_preprocessed_by_the_server(client):
    raw = np.full((20, 30, 3), 200, np.uint8)
    raw[4, 5] = 30  # dark on bright
    request = {"model": NAME, "height": 20, "width": 30, "invert": True}
    request["colours"] = engine.to_base64(raw)
    answer = client.post("/preprocess", json=request).json()
    assert answer["image"] == image_of((22 + 4, 17 + 5, False))  # in the middle of the canvas
    for wrong, message in (
        ({"height": 65}, "height must be a whole number from 1 to 64"),
        ({"height": True}, "height must be a whole number"),
        ({"width": 29}, "The image has 1800 bytes; expected 1740"),
        ({"colours": "?"}, "The image cannot be read"),
    ):
        refused = client.post("/preprocess", json={**request, **wrong})
        assert refused.status_code == 400
        assert message in refused.json()["error"]


def test_a_client_that_hangs_up_leaves_no_traceback(client, monkeypatch, caplog):
    async def gone(request):
        raise ClientDisconnect

    monkeypatch.setattr(server, "_content", gone)
    assert client.post("/infer", json={}).status_code == 400
    assert not caplog.records


# --- answers -----------------------------------------------------------------


def test_images_travel_there_and_back():
    image = (np.random.default_rng(0).random((5, 7, 3)) > 0.5).astype(np.float32)
    sent = json.loads(json.dumps(engine.pack(image)))
    np.testing.assert_array_equal(engine.unpack(sent, (5, 7, 3)), image)


def test_models_are_described(client, made):
    (about,) = client.get("/models").json()["models"]
    settings = made.models[NAME].settings
    assert (about["name"], about["canvas"], about["channels"]) == (NAME, [64, 64], 1)
    assert about["sprite_size"] == settings.sprite_size
    directions = np.array(about["directions"])
    np.testing.assert_allclose(directions @ directions.T, np.eye(len(directions)), atol=1e-5)
    assert (np.diff(about["spread"]) <= 0).all()
    # All that varies is whether there is a second pixel: the first number of the appearance.
    np.testing.assert_allclose(np.abs(directions[0]), [1, 0], atol=1e-3)


def test_the_spread_of_appearances_is_their_standard_deviation(client):
    """The first number of a pair's appearance is PAIR, of a pixel's 0; the second is always 0."""
    is_pair = []
    for k in range(engine.ENCODED):
        bright = draw(NAME, 1 + k % 3, k)[..., 0] > 0
        starts = np.argwhere(bright & ~np.roll(bright, 1, axis=1))
        is_pair += [bright[row, column + 1] for row, column in starts]
    share = np.mean(is_pair)
    assert 0.2 < share < 0.8
    (about,) = client.get("/models").json()["models"]
    spread = handmade.PAIR * np.sqrt(share * (1 - share))
    np.testing.assert_allclose(about["spread"], [spread, 0], atol=1e-3)
    np.testing.assert_allclose(about["mean"], [handmade.PAIR * share, 0], atol=1e-3)


def test_the_distance_to_an_object_is_the_larger_of_both_coordinate_distances(made, monkeypatch):
    """Within half a sprite, 2.5 pixels. The appearance says which object was meant."""
    scene = made._scene(NAME)
    scene.count[0] = 2  # the other slots, at (-1, -1), are empty
    scene.location[0, :2] = (20, 20), (18, 16)
    scene.appearance[0, :3, 0] = 1, 2, 3
    monkeypatch.setattr(made, "_draw_posterior", lambda name, image, seed: scene)
    request = {"model": NAME, "image": image_of(*SCENE), "seed": 0}

    def nearest(*location):
        (answer,) = made.like([{**request, "location": list(location)}])
        return answer["appearance"][0]

    # 2 rows and 1.6 columns from the first, 2.4 columns from the second; then the opposite
    assert nearest(18, 18.4) == 1
    assert nearest(20, 17.6) == 2
    assert nearest(22.4, 22.4) == 1
    for far in ((22.6, 20), (20, 22.6), (15.4, 16), (-1, -1), (0, 0)):
        with pytest.raises(Refused, match="finds no object there"):
            nearest(*far)


def test_a_scene_is_made_and_decomposed(client):
    fresh = client.post("/scene", json={"model": NAME, "kind": "fresh", "count": 3, "seed": 1})
    assert fresh.json()["image"] == image_of(*SCENE)
    found = client.post("/infer", json={"model": NAME, "image": fresh.json()["image"]}).json()
    assert sorted(o["location"] for o in found["objects"]) == [[20, 30], [40, 44]]
    heat = np.frombuffer(base64.b64decode(found["heat"]), np.uint8).reshape(CANVAS)
    assert set(map(tuple, np.argwhere(heat > 200).tolist())) >= {(20, 30), (40, 44)}
    terms = found["terms"]
    elbo = terms["log_likelihood"] - sum(v for k, v in terms.items() if k.startswith("kl"))
    assert elbo - 0.1 < found["log_p"] < 0  # a tighter bound
    dreamt = client.post("/scene", json={"model": NAME, "kind": "prior", "count": 2, "seed": 1})
    pixels = engine.unpack(dreamt.json()["image"], (*CANVAS, 1))
    assert 2 <= pixels.sum() <= 4


def test_the_parts_of_an_answer_fit_each_other(client):
    """Sprites, put on their locations, are what the server renders."""
    image = image_of(*SCENE)
    objects = client.post("/infer", json={"model": NAME, "image": image}).json()["objects"]
    scene = {"objects": [{k: o[k] for k in ("location", "appearance")} for o in objects]}
    rendered = client.post("/render", json={"model": NAME, "scene": scene}).json()["pixels"]
    rendered = np.frombuffer(base64.b64decode(rendered), np.uint8).reshape(CANVAS)
    np.testing.assert_array_equal(rendered > 127, handmade.picture(*SCENE, canvas=CANVAS)[..., 0])
    for thing in objects:
        request = {"model": NAME, "kind": "decode", "appearance": thing["appearance"]}
        assert client.post("/appearance", json=request).json()["sprite"] == thing["sprite"]
    request = {"model": NAME, "kind": "like", "image": image, "location": [41, 44], "seed": 3}
    like = client.post("/appearance", json=request).json()
    assert like["appearance"][0] == pytest.approx(handmade.PAIR, abs=0.1)
    other = {"model": NAME, "kind": "other", "seed": 3}
    first, second = (client.post("/appearance", json=other).json() for _ in range(2))
    assert first == second
    assert len(first["appearance"]) == 2


def test_clients_at_once_get_their_own_answers(client):
    locations = [(4 + 2 * k, 9 + 2 * k) for k in range(20)]
    answers = {}

    def visit(k):
        request = {"model": NAME, "image": image_of((*locations[k], False))}
        if k == 7:
            request["image"]["bits"] = "?"
        answers[k] = client.post("/infer", json=request)

    threads = [threading.Thread(target=visit, args=(k,)) for k in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.pop(7).status_code == 400  # and no other request fails
    for k, answer in answers.items():
        assert [o["location"] for o in answer.json()["objects"]] == [list(locations[k])]


def test_an_answer_does_not_depend_on_concurrent_requests(made):
    ours, theirs = image_of(*SCENE), image_of((9, 9, True))
    image, location = {"model": NAME, "image": ours}, {"location": [40, 44], "seed": 5}
    for function, request in ((made.infer, image), (made.like, {**image, **location})):
        (alone,) = function([request])
        *_, among_others = function([{**request, "image": theirs, "location": [9, 9]}, request])
        assert among_others == alone


def test_a_model_that_is_not_warm_yet_is_refused(made):
    app = server.make_app(made, [HOST], lambda: [])
    with TestClient(app, base_url=f"http://{HOST}") as client:
        answer = client.post("/infer", json={"model": NAME, "image": image_of(*SCENE)})
    assert answer.status_code == 400
    assert "handmade is still warming up" in answer.json()["error"]


# --- refusals ----------------------------------------------------------------

GOOD = image_of(*SCENE)
REFUSED = [
    ("/infer", {}, "names no model"),
    ("/infer", {"model": "best", "image": GOOD}, "no such model; expected one of handmade"),
    ("/infer", {"model": ["x"], "image": GOOD}, "names no model"),
    ("/infer", {"model": NAME}, "no image in the request"),
    ("/infer", {"model": NAME, "image": "x"}, "no image in the request"),
    ("/infer", {"model": NAME, "image": {**GOOD, "height": 4096}}, "64x64 pixels"),
    ("/infer", {"model": NAME, "image": {**GOOD, "channels": 3}}, "64x64 pixels and 1"),
    ("/infer", {"model": NAME, "image": {**GOOD, "bits": "AAAA"}}, "has 3 bytes; expected 512"),
    ("/infer", {"model": NAME, "image": {**GOOD, "bits": "%"}}, "cannot be read"),
    ("/infer", {"model": NAME, "image": {**GOOD, "bits": 7}}, "cannot be read"),
    ("/infer", {"model": NAME, "kind": "x", "image": GOOD}, "kind must be one of"),
    ("/scene", {"model": NAME, "kind": "stale", "count": 1, "seed": 0}, "one of fresh, prior"),
    ("/scene", {"model": NAME, "kind": {}, "count": 1, "seed": 0}, "one of fresh, prior"),
    ("/scene", {"model": NAME, "kind": "fresh", "count": -1, "seed": 0}, "count must be a whole"),
    ("/scene", {"model": NAME, "kind": "fresh", "count": 2.5, "seed": 0}, "count must be a whole"),
    ("/scene", {"model": NAME, "kind": "prior", "count": 11, "seed": 0}, "from 0 to 10"),
    ("/scene", {"model": NAME, "kind": "prior", "count": 1, "seed": 2**31}, "seed must be"),
    ("/scene", {"model": NAME, "kind": "fresh", "count": True, "seed": 0}, "count must be a whole"),
    ("/scene", {"model": NAME, "kind": "prior", "count": 1, "seed": True}, "seed must be a whole"),
    ("/appearance", {"model": NAME, "kind": "other", "seed": False}, "seed must be a whole"),
    ("/appearance", {"model": NAME, "kind": "decode", "appearance": [1, True]}, "2 numbers"),
    ("/appearance", {"model": NAME, "kind": "decode", "appearance": ["1", "2"]}, "2 numbers"),
    (
        "/appearance",
        {"model": NAME, "kind": "like", "image": GOOD, "location": [True, 1], "seed": 0},
        "A location must be 2 numbers",
    ),
    (
        "/appearance",
        {"model": NAME, "kind": "decode", "appearance": [1]},
        "must be 2 numbers between",
    ),
    ("/appearance", {"model": NAME, "kind": "decode", "appearance": [1, "a"]}, "2 numbers"),
    ("/appearance", {"model": NAME, "kind": "decode", "appearance": [1, 1e99]}, "2 numbers"),
    (
        "/appearance",
        {"model": NAME, "kind": "like", "image": image_of(), "location": [1, 1], "seed": 0},
        "finds no object there",
    ),
    (
        "/appearance",
        {"model": NAME, "kind": "like", "image": GOOD, "location": [3, 60], "seed": 0},
        "finds no object there",
    ),
    ("/render", {"model": NAME, "scene": []}, "list of up to 16 objects"),
    ("/render", {"model": NAME, "scene": {"objects": [{}] * 17}}, "list of up to 16 objects"),
    ("/render", {"model": NAME, "scene": {"objects": [7]}}, "a location and an appearance"),
    ("/render", {"model": NAME, "scene": {"objects": [{"location": [1]}]}}, "2 numbers"),
]


@pytest.mark.parametrize(("path", "content", "message"), REFUSED)
def test_invalid_values_are_refused_with_an_explanation(client, path, content, message):
    answer = client.post(path, json=content)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_malformed_requests_are_refused(client, body):
    headers = {"content-type": "application/json"}
    answer = client.post("/infer", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"] == "The request cannot be read."


def test_requests_of_other_hosts_or_origins_and_long_ones_are_refused(client):
    request = {"model": NAME, "image": GOOD}
    for headers, status in (
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": f"http://{HOST}"}, 200),
        ({"content-type": "text/plain"}, 415),
    ):
        assert client.post("/infer", json=request, headers=headers).status_code == status, headers
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    long = json.dumps({**request, "more": "x" * server.LARGEST_BODY})
    headers = {"content-type": "application/json"}
    assert client.post("/infer", content=long, headers=headers).status_code == 413


@pytest.mark.parametrize(("pieces", "status"), [(4, 400), (5, 413)])
def test_a_body_that_arrives_in_pieces_is_limited_by_their_sum(made, monkeypatch, pieces, status):
    """Starlette's client would send the pieces as one, so the application is called directly."""
    monkeypatch.setattr(server, "LARGEST_BODY", 1_000)
    headers = {b"host": HOST.encode(), b"content-type": b"application/json"}
    scope = {"type": "http", "method": "POST", "path": "/infer", "query_string": b""}
    scope["headers"] = list(headers.items())
    left, answers = [b"x" * 250] * pieces, []  # not JSON

    async def receive():
        body = left.pop()
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message):
        answers.append(message.get("status"))

    asyncio.run(server.make_app(made, [HOST], lambda: [NAME])(scope, receive, send))
    assert answers[0] == status


def test_a_server_that_is_open_to_others_accepts_any_address_but_no_other_name(made):
    app = server.make_app(made, ["localhost:80", f"{server.ANY_ADDRESS}:80"], lambda: [NAME])
    with TestClient(app) as client:
        for host, status in (
            ("localhost:80", 200),
            ("192.168.1.7:80", 200),
            ("192.168.1.7", 200),
            ("[fe80::1]", 200),
            ("[fd00::5]:80", 200),
            ("192.168.1.7:81", 403),
            ("evil.example:80", 403),
        ):
            assert client.get("/", headers={"host": host}).status_code == status, host


@pytest.mark.parametrize(
    "path", ["/static/../engine.py", "/static/%2e%2e/engine.py", "/etc/passwd", "/static/", "/x"]
)
def test_no_other_file_can_be_read(client, path):
    assert client.get(path).status_code in (404, 405)


def test_every_answer_has_the_headers_that_keep_the_page_safe(client):
    for answer in (client.get("/"), client.get("/x"), client.get("/static/app.js")):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in client.get("/").text  # nothing comes from elsewhere


def test_python_errors_are_not_sent_to_clients(made, monkeypatch):
    def broken(requests):
        raise RuntimeError("secret")

    monkeypatch.setattr(made, "infer", broken)
    app = server.make_app(made, [HOST], lambda: [NAME])
    with TestClient(app, base_url=f"http://{HOST}", raise_server_exceptions=False) as client:
        answer = client.post("/infer", json={"model": NAME, "image": GOOD})
    assert answer.status_code == 500
    assert "secret" not in answer.text


def test_refusals_name_the_models():
    with pytest.raises(Refused, match="expected one of handmade"):
        Engine({NAME: handmade.model()}).model("other")


# --- the page ----------------------------------------------------------------

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@contextlib.contextmanager
def serving(made, port=0):
    """The address of a server on this machine, and how to end it."""
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(("127.0.0.1", port))
        port = opened.getsockname()[1]
        app = server.make_app(made, [f"127.0.0.1:{port}"], lambda: [NAME])
        running = uvicorn.Server(uvicorn.Config(app, log_level="error", proxy_headers=False))
        thread = threading.Thread(target=running.run, args=([opened],), daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.01)

        def end():
            running.should_exit = True
            thread.join()

        yield port, end
        end()


@pytest.fixture(scope="module")
def served(made):
    with serving(made) as (port, end):
        yield port, end


@pytest.fixture
def page(served, tmp_path):
    if not BROWSER or not DRIVER:
        pytest.skip("there is no chromium with chromedriver (Debian: chromium, chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
    flags = ["headless=new", "no-sandbox", "no-first-run", "window-size=1400,1000"]
    flags += [f"disable-{name}" for name in quiet]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*flags, f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        options.add_experimental_option("prefs", {"download.default_directory": str(tmp_path)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(DRIVER)
        with webdriver.Chrome(options=options, service=service) as driver:
            yield Page(driver, f"http://127.0.0.1:{served[0]}/")


class Page:
    def __init__(self, driver, url):
        self.driver, self.url = driver, url
        self.open(url)

    def open(self, url):
        self.driver.get("about:blank")
        self.driver.get(url)
        self.wait("Edit an object")

    def __getitem__(self, name):
        return self.driver.find_element("id", name)

    def wait(self, text, where="others", seconds=20):
        deadline = time.time() + seconds
        while text not in self[where].text:
            assert time.time() < deadline, (text, self[where].text, self["alert"].text)
            time.sleep(0.02)

    def wait_for_lit(self, *numbers, seconds=20):
        """Until so many pixels are."""
        deadline = time.time() + seconds
        while len(pixels := self.foreground()) not in numbers:
            assert time.time() < deadline, pixels
            time.sleep(0.02)

    def foreground(self):
        """The stage's pixels that are more white than black, without boxes."""
        script = """
            const done = arguments[0], stage = document.getElementById("stage");
            document.getElementById("boxes").checked = false;
            document.getElementById("boxes").dispatchEvent(new Event("change"));
            requestAnimationFrame(() => requestAnimationFrame(() => {
              const data = stage.getContext("2d").getImageData(0, 0, 512, 512).data;
              const foreground = [];
              for (let r = 0; r < 64; r++) for (let c = 0; c < 64; c++)
                if (data[4 * (512 * (8 * r + 4) + 8 * c + 4)] > 127) foreground.push([r, c]);
              done(foreground);
            }));"""
        return sorted(map(tuple, self.driver.execute_async_script(script)))

    def drag(self, canvas, start, end, *keys):
        """From a pixel to another one."""
        from selenium.webdriver import ActionChains

        element = self[canvas]
        side = element.size["width"] / 64

        def offset(location):
            return [round(side * (v + 0.5) - element.size["width"] / 2) for v in reversed(location)]

        actions = ActionChains(self.driver, duration=20)
        actions.move_to_element_with_offset(element, *offset(start)).click_and_hold()
        middle = [(a + b) / 2 for a, b in zip(start, end, strict=True)]
        actions.move_to_element_with_offset(element, *offset(middle))
        for key in keys:
            actions.key_down(key)
        actions.move_to_element_with_offset(element, *offset(end)).release()
        for key in keys:
            actions.key_up(key)
        actions.perform()

    def complaints(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


PIXEL, PAIR = [(20, 30)], [(40, 44), (40, 45)]


def test_a_user_decomposes_a_scene_edits_it_and_keeps_it(page, tmp_path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    assert page["found"].text == "– 2 objects"
    assert page.foreground() == PIXEL + PAIR

    page.drag("stage", (20, 30), (10, 12))
    assert page.foreground() == [(10, 12), *PAIR]
    page.wait("In the edited image, all objects are found.")
    page.wait("The inferred locations of unedited objects (1) changed by 0.00 pixels on average")
    page.wait("and their appearances by 0.00 standard deviations.")
    page["undo"].click()
    page.wait("unedited objects (2) changed by 0.00 pixels")
    assert page.foreground() == PIXEL + PAIR
    page["redo"].click()
    assert page.foreground() == [(10, 12), *PAIR]
    page["undo"].click()

    page.drag("stage", (20, 30), (40, 44), Keys.SHIFT)  # swapped
    assert page.foreground() == [(20, 30), (20, 31), (40, 44)]
    page["undo"].click()

    Select(page["swap-with"]).select_by_visible_text("object 2")
    page["swap"].click()
    assert page.foreground() == [(20, 30), (20, 31), (40, 44)]
    page["undo"].click()

    page["stage"].send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_LEFT)
    assert page["status"].text == "object 1 at row 22, column 29"
    assert page.foreground() == [(22, 29), *PAIR]
    page["stage"].send_keys(Keys.DELETE)
    assert page.foreground() == PAIR
    assert page["found"].text == "– 1 object"
    for _ in range(4):
        page["undo"].click()
    assert page.foreground() == PIXEL + PAIR

    # The slider of the only direction there is makes a pair of the pixel, or one of the pair.
    slider = page["slider-0"]
    for key in (Keys.HOME, Keys.END):
        slider.send_keys(key)
        page.wait("all objects are found")
    page.wait_for_lit(2, 4)

    # A morph continues from key to key, and is one step to undo.
    while page["undo"].is_enabled():
        page["undo"].click()
    Select(page["morph-with"]).select_by_visible_text("object 2")
    for _ in range(20):
        page["morph"].send_keys(Keys.ARROW_RIGHT)
    assert page["morph"].get_attribute("value") == "1"
    page.wait_for_lit(2, 4)
    page.wait("all objects are found")
    page.driver.execute_script("document.activeElement.blur()")
    while page["undo"].is_enabled():
        page["undo"].click()
    assert page.foreground() == PIXEL + PAIR

    page["copy"].click()
    page.wait("3 objects", "found")
    assert len(page.foreground()) in (4, 5)
    page["save-scene"].click()
    file = tmp_path / "scene.json"
    deadline = time.time() + 10
    while not file.exists():
        assert time.time() < deadline
        time.sleep(0.02)
    kept = page.foreground()
    page["link"].click()
    link = page.driver.current_url
    assert "#handmade," in link
    page["delete"].click()
    page.wait("2 objects", "found")
    page["load-scene"].send_keys(str(file))
    page.wait("3 objects", "found")
    assert page.foreground() == kept
    page.open(link)
    page.wait("3 objects", "found")
    assert page.foreground() == kept

    page["clear"].click()
    page.wait("0 objects", "found")
    page.drag("input", (30, 30), (30, 30))  # a dot is drawn
    page.wait("1 object", "found")
    assert page.foreground() == [(30, 30)]
    page["add"].click()
    page.wait("2 objects", "found")

    (tmp_path / "bad.json").write_text("{}")
    page["load-scene"].send_keys(str(tmp_path / "bad.json"))
    page.wait("This file is not a scene.", "alert")
    picture = tmp_path / "dot.png"
    dot = np.full((64, 64), 255, np.uint8)
    dot[50, 8] = 0  # dark on white
    from PIL import Image

    Image.fromarray(dot).save(picture)
    page["invert"].click()
    page["file"].send_keys(str(picture))
    page.wait("1 object", "found")
    assert page.foreground() == [(50, 8)]
    page["heat"].click()
    controls = page.driver.find_elements(By.CSS_SELECTOR, "button, select, input, canvas[role]")
    assert all(control.accessible_name for control in controls if control.is_displayed())
    assert page.complaints() == []


def test_a_lost_server_is_noticed_and_its_requests_are_sent_again(page, made, served):
    port, end = served
    end()
    page.drag("stage", (20, 30), (10, 12))
    page.wait("The server does not answer", "alert")
    assert page.foreground() == [(10, 12), *PAIR]
    with serving(made, port):
        page.wait("all objects are found")
        assert page["alert"].text == ""
