"""``ratewise app``: the questions of ``ratewise start`` as a page on this computer.

The server listens on the loopback interface only. Every request needs the random token of the page's address and
a Host header that names the loopback interface, so that neither other computers nor other web pages can use it. The
page is one file without external parts. Nothing is stored except in the folder of the run.
"""

from __future__ import annotations

import hmac
import html
import itertools
import json
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from ratewise import _validate
from ratewise.cli.console import current, reading_of, refuse_folder
from ratewise.cli.guided import KINDS, Choices, Guide
from ratewise.cli.options import PLACE, file_options
from ratewise.exceptions import InvalidInput, RatewiseError
from ratewise.runs import Watch
from ratewise.training.loop import StepRecord

_LARGEST_REQUEST = 1 << 16
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@click.command()
@click.argument("data", type=PLACE)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 takes a free one.")
@file_options
def app(data: str, port: int, **values: Any) -> None:
    """Open the questions of `ratewise start` as a web page on this computer; Ctrl-C ends it."""
    console = current()
    server = AppServer(Guide(data, reading_of(values)), port)
    console.result(f"open {server.address} (Ctrl-C ends it)", url=server.address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.note("ended")
    finally:
        server.server_close()


class AppServer(ThreadingHTTPServer):
    """The server of one file: at most one training at a time, in the background.

    `state` is what the page shows of the training: released values only.
    """

    daemon_threads = True

    def __init__(self, guide: Guide, port: int = 0) -> None:
        self.guide = guide
        self.token = secrets.token_urlsafe(24)
        self.state: dict[str, Any] = {"share": 0.0, "text": "", "done": False, "error": ""}
        self.job: threading.Thread | None = None
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def begin(self, choices: Choices) -> None:
        """Start training, unless one is going on."""
        with self._lock:
            if self.job is not None and not (self.state["done"] or self.state["error"]):
                raise InvalidInput("a training is going on; wait until it ends")
            refuse_folder(self.guide.check(choices).out, force=None)
            self.state = {"share": 0.0, "text": "preparing", "done": False, "error": ""}
            self.job = threading.Thread(target=self._train, args=(choices,), daemon=True)
        self.job.start()

    def _train(self, choices: Choices) -> None:
        steps = choices.settings.config.steps or 200

        def on_step(record: StepRecord) -> None:
            self.state = {**self.state, "share": record.step / steps, "text": f"step {record.step} of {steps}"}

        try:
            result = self.guide.train(choices, Watch(on_step=on_step))
        except Exception as problem:  # shown on the page: nobody reads the log of a thread
            known = isinstance(problem, RatewiseError)
            said = str(problem) if known else f"training failed: {type(problem).__name__}: {problem}"
            self.state = {**self.state, "error": said}
            return
        self.state = {
            **self.state,
            "share": 1.0,
            "text": "finished",
            "summary": result.summary,
            "messages": list(result.messages),
            "folder": str(result.folder.path),
            **self.guide.same_run(choices),
            "done": True,
        }


class Handler(BaseHTTPRequestHandler):
    """Answers requests of the page."""

    server: AppServer
    server_version, sys_version = "ratewise", ""

    def log_message(self, *_: Any) -> None:
        """Write no log: addresses hold the token."""

    def do_GET(self) -> None:
        """Answer with the page, the state of the training, or the report."""
        place = urlsplit(self.path)
        if not self._allowed(parse_qs(place.query).get("token", [""])[0]):
            return
        if place.path == "/":
            nonce = secrets.token_urlsafe(16)
            self._send(page(self.server, nonce), "text/html; charset=utf-8", nonce=nonce)
        elif place.path == "/status":
            self._json(self.server.state)
        elif place.path == "/report" and self.server.state["done"]:
            made = (Path(self.server.state["folder"]) / "report.html").read_text(encoding="utf-8")
            self._send(made, "text/html; charset=utf-8", styled=True)
        else:
            self._json({"error": "there is no such page"}, HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Answer what to expect, or start training."""
        if not self._allowed(""):
            return
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 < length <= _LARGEST_REQUEST:
                raise InvalidInput("the request is empty or too large")
            if self.headers.get("Content-Type", "").split(";")[0] != "application/json":
                raise InvalidInput("the request must be JSON")
            choices = choices_from(self.server.guide, json.loads(self.rfile.read(length)))
            if self.path == "/train":
                self.server.begin(choices)
                self._json({"started": True})
            elif self.path == "/outlook":
                self._json({"lines": self.server.guide.outlooks(choices)})
            else:
                self._json({"error": "there is no such page"}, HTTPStatus.NOT_FOUND)
        except (RatewiseError, ValueError, TypeError) as problem:
            self._json({"error": str(problem)}, HTTPStatus.BAD_REQUEST)

    def _allowed(self, token: str) -> bool:
        """Check host, origin and token; answer and return False if one is wrong."""
        port = self.server.server_port
        hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        origin = self.headers.get("Origin")
        given = self.headers.get("X-Ratewise-Token") or token
        sound = self.headers.get("Host") in hosts
        sound = sound and (origin is None or origin in {f"http://{host}" for host in hosts})
        sound = sound and hmac.compare_digest(given.encode(), self.server.token.encode())
        if not sound:
            self._json({"error": "open the address that ratewise app has printed"}, HTTPStatus.FORBIDDEN)
        return sound

    def _json(self, content: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(content), "application/json", status)

    def _send(
        self, text: str, kind: str, status: HTTPStatus = HTTPStatus.OK, *, nonce: str = "", styled: bool = False
    ) -> None:
        body = text.encode("utf-8")
        policy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        if nonce:
            policy += f"; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'"
        elif styled:
            policy += "; style-src 'unsafe-inline'; script-src 'unsafe-inline'"  # the page names its script
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Security-Policy": policy}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


# ------------------------------------------------------------------------------- what is exchanged


def choices_from(guide: Guide, said: Any) -> Choices:
    """Return the choices that the page sent; results are written to the folder in which the app was started."""
    known = {field.name for field in fields(Choices)} - {"data"}
    if not isinstance(said, dict) or not said.keys() <= known:
        raise InvalidInput("the request must hold the fields of the form")
    lists = {name: said.pop(name, []) for name in ("groups", "leave_out")}
    numbers = {name: said.pop(name, getattr(guide.suggestion, name)) for name in ("slack", "epsilon")}
    if not all(isinstance(names, list) for names in lists.values()) or not all(
        isinstance(text, str) for text in (*itertools.chain(*lists.values()), *said.values())
    ):
        raise InvalidInput("the request must hold the fields of the form")
    for name, value in numbers.items():
        numbers[name] = _validate.real(**{name: value})
    out = said.get("out", guide.suggestion.out)
    if not out or out in (".", "..") or Path(out).name != out or os.path.isabs(out):
        raise InvalidInput("the folder must be a plain name; it is made where ratewise app was started")
    found = replace(guide.suggestion, **{**said, **numbers, **{name: tuple(names) for name, names in lists.items()}})
    return guide.check(found)


def page(server: AppServer, nonce: str) -> str:
    """Return the page, with suggestions filled in."""
    guide, chosen = server.guide, server.guide.suggestion
    template = Template(resources.files("ratewise.cli").joinpath("assets/app.html").read_text("utf-8"))
    names, first = guide.columns, lambda name: name not in chosen.groups
    boxes = {name: name for name in sorted(names, key=first)}
    return template.substitute(
        file=html.escape(Path(chosen.data).name),
        size=f"{len(guide.table.frame):,} rows, {len(names)} columns",
        label_options=_options(names, chosen.label),
        id_options=f'<option value="">One row</option>{_options(names, chosen.privacy_id)}',
        leave_out_boxes=_inputs("checkbox", "leave_out", dict(zip(names, names, strict=True)), ()),
        group_boxes=_inputs("checkbox", "groups", boxes, chosen.groups),
        kind_radios=_inputs("radio", "kind", KINDS, (chosen.kind,)),
        positive=html.escape(chosen.positive),
        slack=f"{chosen.slack:g}",
        epsilon=f"{chosen.epsilon:g}",
        out=html.escape(chosen.out),
        token=server.token,
        nonce=nonce,
    )


def _inputs(kind: str, name: str, items: Mapping[str, str], chosen: Sequence[str]) -> str:
    return "".join(
        f'<label><input type="{kind}" name="{name}" value="{html.escape(value)}"'
        f"{' checked' if value in chosen else ''}> {html.escape(words)}</label>"
        for value, words in items.items()
    )


def _options(names: list[str], chosen: str) -> str:
    return "".join(
        f'<option value="{html.escape(name)}"{" selected" if name == chosen else ""}>{html.escape(name)}</option>'
        for name in names
    )
