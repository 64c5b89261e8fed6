"""The local page of `ratewise app` in a real browser: keyboard only, accessible, one file, one folder."""

import http.client
import json
import threading

import numpy as np
import pandas as pd
import pytest

from ratewise.cli.guided import Guide
from ratewise.cli.webapp import AppServer
from ratewise.runs import RunFolder


@pytest.fixture
def server(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    age = rng.uniform(17, 90, 800).round()
    frame = pd.DataFrame(
        {
            "age": age,
            'job "<b>x</b>"': rng.choice(["clerk", "sales"], 800),
            "sex": rng.choice(["F", "M"], 800),
            "income": np.where(age + rng.normal(0, 15, 800) > 50, "high", "low"),
        }
    )
    monkeypatch.chdir(tmp_path)
    frame.to_csv("people.csv", index=False)
    made = AppServer(Guide("people.csv", {}))
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def visit(browser, server, width=390, scheme="light"):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    asked, problems = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.goto(server.address)
    return page, asked, problems


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1200, "light")])
def test_the_form_is_accessible_and_fits(browser, server, width, scheme, violations):
    page, asked, problems = visit(browser, server, width, scheme)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.input_value("#label") == "income"
    assert page.is_checked("input[name=groups][value=sex]")
    assert page.locator("label b").count() == 0  # names of columns are text
    assert all(url.startswith(f"http://127.0.0.1:{server.server_port}/") for url in asked)
    assert problems == []


def test_a_training_by_keyboard_alone(browser, server, tmp_path, violations):
    page, asked, problems = visit(browser, server)
    order = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.id || document.activeElement.name")
        order.append(name)
        if name == "epsilon":
            page.keyboard.press("Control+A")
            page.keyboard.type("4")
        if name == "out":
            page.keyboard.press("Control+A")
            page.keyboard.type("first-run")
        if name == "train":
            break
    wanted = ["label", "privacy_id", "groups", "kind", "slack", "epsilon", "ask", "out", "train"]
    assert [name for name in dict.fromkeys(order) if name in wanted] == wanted
    page.keyboard.press("Enter")
    page.wait_for_selector("#result:not([hidden])", timeout=120_000)
    assert page.evaluate("document.activeElement.id") == "result"
    assert page.inner_text("#summary").startswith("Largest gap: requested .05, reached ")
    assert "ratewise train people.csv --label income" in page.inner_text("#command")
    assert violations(page) == []
    folder = RunFolder.open(tmp_path / "first-run")
    assert folder.finished
    assert folder.settings.epsilon == 4.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first-run", "people.csv"]
    page.click("#report")
    assert "Prediction of income, compared by sex, from people.csv" in page.inner_text("h1")
    assert violations(page) == []
    assert all(url.startswith(f"http://127.0.0.1:{server.server_port}/") for url in asked)
    assert problems == []


def test_what_to_expect_and_what_is_wrong(browser, server, tmp_path, violations):
    page, _, problems = visit(browser, server)
    page.click("#ask")
    page.wait_for_selector("#outlook p", timeout=120_000)
    assert "epsilon 1: accuracy " in page.inner_text("#outlook")
    page.uncheck("input[name=groups][value=sex]")
    page.click("#train")
    page.wait_for_selector("#problem:not(:empty)")
    assert "name at least one column of groups" in page.inner_text("#problem")
    assert violations(page) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.csv"]
    assert len(problems) == 1  # the browser notes the answer 400
    assert "400" in problems[0]


def ask(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    given = {"Content-Type": "application/json", "X-Ratewise-Token": server.token, **headers}
    connection.request(method, path, body=body, headers={k: v for k, v in given.items() if v is not None})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.parametrize(
    "wrong",
    [
        {"X-Ratewise-Token": "x"},
        {"X-Ratewise-Token": None},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_other_pages_and_computers_are_rejected(server, wrong):
    for method, path in (("GET", "/"), ("GET", "/status"), ("POST", "/train"), ("GET", "/report")):
        status, said = ask(server, method, path, "{}" if method == "POST" else None, **wrong)
        assert status == 403, (method, path)
        assert "income" not in said
    assert server.job is None


@pytest.mark.parametrize(
    "said",
    [
        {"out": "../elsewhere"},
        {"out": "/tmp/elsewhere"},
        {"out": ".."},
        {"out": ""},
        {"label": "no such"},
        {"epsilon": "x"},
        {"epsilon": -1},
        {"slack": 2},
        {"groups": "sex"},
        {"kind": "x"},
        {"data": "/etc/passwd"},
        [],
        {"privacy_id": "sex", "groups": ["sex"]},
    ],
)
def test_bad_requests_are_rejected_and_leave_nothing(server, tmp_path, said):
    status, answer = ask(server, "POST", "/train", json.dumps(said))
    assert status == 400
    assert json.loads(answer)["error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.csv"]


def test_the_server_listens_on_the_loopback_interface_only(server):
    assert server.server_address[0] == "127.0.0.1"
    status, _ = ask(server, "GET", "/no-such")
    assert status == 404
