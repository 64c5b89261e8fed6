"""No network at run time: nothing but the download of data sets can ask for it, and nothing does."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import ratewise

SOURCE = Path(ratewise.__file__).parent
SPEAKING = {"urllib", "http", "socket", "requests", "ftplib", "smtplib", "asyncio", "xmlrpc", "webbrowser"}
SPEAKING |= {"socketserver", "aiohttp", "httpx", "telnetlib", "poplib", "imaplib"}
DOWNLOADS = "datasets/files.py"
LOCAL_PAGE = "cli/webapp.py"  # listens on the loopback interface, when asked to
CLUSTERS = "distributed/clusters.py"  # sums run in the event loop of the user's Dask workers

CHILD = textwrap.dedent(
    """
    import sys
    asked = []
    NAMES = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "urllib.Request")
    sys.addaudithook(lambda name, arguments: asked.append(name) if name in NAMES else None)

    import warnings
    warnings.simplefilter("ignore")
    import numpy as np, torch
    torch.set_num_threads(1)
    import ratewise as rw, ratewise.torch as rt
    from click.testing import CliRunner
    from ratewise import audit, datasets
    from ratewise.cli.app import cli
    from ratewise.cli.options import to_toml
    from ratewise.accounting import TrainingEvent
    from ratewise.report import Report
    from ratewise.data.schema import Category, Number, Schema

    folder = sys.argv[1]
    rng = np.random.default_rng(0)
    X, y, g = rng.normal(size=(300, 3)), np.arange(300) % 2, {"g": rng.integers(0, 2, 300)}
    limit = rw.demographic_parity("g", max_gap=0.5)
    declared = dict(classes=[0, 1], group_values={"g": [0, 1]}, epsilon=2.0, delta=1e-5)
    short = rw.TrainingConfig(steps=3)
    model = rw.RateConstrainedClassifier(limit, config=short, **declared).fit(X, y, sensitive_features=g)
    rt.TorchRateConstrainedClassifier(rt.MLP(3, 2, (3,)), limit, config=short, **declared).fit(
        X.astype(np.float32), y, sensitive_features=g
    )
    Report.from_predictions(y, model.predict(X), g).to_html()
    audit.audit_step(TrainingEvent(1.0, 1, gradient_noise=1.0, histogram=None), games=40)
    assert len(datasets.census_like(40, random_state=0)) == 40

    schema = Schema({"age": Number(0, 90)}, label="y", classes=[0, 1], groups={"g": Category([0, 1])})
    with open(folder + "/schema.toml", "w") as file:
        file.write(to_toml(schema.to_dict()))
    with open(folder + "/rows.csv", "w") as file:
        print("age,g,y", file=file)
        for i in range(400):
            print(i % 90, i % 3 % 2, i % 2, sep=",", file=file)
    rows, run = folder + "/rows.csv", folder + "/run"
    sized = ["--schema", folder + "/schema.toml", "--label", "y", "--steps", "2", "--epsilon", "8"]
    for words in (
        ["train", rows, *sized, "--constraint", "demographic_parity(g) <= 0.5", "--out", run],
        ["predict", run, rows],
        ["report", run, rows, "--out", folder + "/page.html"],
    ):
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, (words, done.output)
    print("fetched", *asked)
    import urllib.request
    try:
        urllib.request.urlopen("http://localhost:9/", timeout=1)
    except OSError:
        pass
    print("control", *sorted(set(asked)))
    """
)


def imported(path):
    """Yield the first word of every module that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_only_the_download_of_data_sets_imports_what_speaks():
    speaking = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if SPEAKING & set(imported(path))}
    assert speaking == {DOWNLOADS, LOCAL_PAGE, CLUSTERS}


def test_fits_of_both_engines_reports_audits_and_commands_ask_for_nothing(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    fetched, control = found.stdout.splitlines()
    assert fetched == "fetched"
    assert "urllib.Request" in control  # the same watch sees a request
    assert "socket.getaddrinfo" in control
