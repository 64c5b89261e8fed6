"""The README and the guides: examples run, quoted numbers are those of the tables, links and commands exist."""

import importlib
import importlib.util
import json
import math
import re
import runpy
import statistics
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from ratewise.accounting import calibrate, theory
from ratewise.cli import demo
from ratewise.exceptions import InvalidInput

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import certificate, persons, theory_vs_accountant  # noqa: E402
from benchmarks import page as results_page  # noqa: E402
from benchmarks.__main__ import NAMES  # noqa: E402

PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]
# test_report_of_classifier.py runs report.md; the blocks of pytorch.md take names that a test below gives them
ELSEWHERE = {"report.md", "pytorch.md"}
SLOW = {"plot_2_trade_off", "plot_5_epsilon", "plot_8_network", "plot_7_ledger", "plot_9_persons"}
SCRIPTS = [
    script
    for folder in ("examples", "attacks")
    for script in sorted((ROOT / "docs" / folder).glob("plot_*.py"))
    if script.stem not in SLOW
]
SOURCES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "tests", "benchmarks", "docs")
    for path in (ROOT / folder).rglob("*.py")
]
USERS = {"train.py"}  # files of a reader
RUN = [page for page in PAGES if page.name not in ELSEWHERE and "```python" in page.read_text()]


def blocks(page):
    """Return the plain Python of a page; doctests are run elsewhere."""
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [block for block in found if ">>>" not in block]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_examples_run_as_written(page, tmp_path, monkeypatch, capsys):
    """All blocks of a page run one after the other, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example", "batches": range(200)}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)
    check = CHECKS.get(page.name)
    if check is not None:
        check(names, capsys.readouterr().out)


@pytest.mark.slow
def test_blocks_on_networks_run(tmp_path, monkeypatch):
    """Each block of pytorch.md runs with small stand-ins for the reader's data, modules and optimizers."""
    torch = pytest.importorskip("torch")
    networks = importlib.import_module("ratewise.torch")
    monkeypatch.setattr(networks, "resnet16", networks.SmallCNN)  # resnet16 takes minutes
    rng, n = np.random.default_rng(0), 400
    X = rng.normal(size=(n, 4)).astype(np.float32)
    y, sex = (X[:, 0] > 0).astype(int), rng.choice(["Female", "Male"], n)
    races = ["White", "Black", "Asian", "Indian", "other"]

    def parts():
        module = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=20)
        return {"module": module, "model": module, "optimizer": optimizer, "scheduler": scheduler}

    first = {
        "pictures": rng.integers(0, 256, (64, 3, 32, 32), dtype=np.uint8),
        "gender": rng.choice(["male", "female"], 64),
        "race": rng.choice(races, 64),
    }
    rows = [(torch.tensor(x), int(label), {"sex": str(group)}) for x, label, group in zip(X, y, sex, strict=True)]
    given = [
        {**first, "new_pictures": first["pictures"]},
        {"X": X, "y": y, "sex": sex, **parts()},
        {"dataset": rows, "DataLoader": torch.utils.data.DataLoader, **parts()},
        {"np": np, "labels": y, **parts()},
    ]
    names = {"__name__": "example"}
    found = blocks(ROOT / "docs" / "pytorch.md")
    assert len(found) == len(given)
    for number, (block, extra) in enumerate(zip(found, given, strict=True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        np.save(folder / "x.npy", X)
        monkeypatch.chdir(folder)
        names.update(extra)
        exec(compile(block, "pytorch.md", "exec"), names)
    assert names["certificate"].verdict
    assert (tmp_path / "1" / "run.ckpt").exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scripts_of_the_galleries_run(script, tmp_path, monkeypatch):
    """`make docs` runs all of them; here are those that need little time. Attacks assert that they succeed and are defended."""
    monkeypatch.chdir(tmp_path)
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    try:
        runpy.run_path(str(script), run_name="example")
    finally:
        pyplot.close("all")


def check_readme(names, printed):
    assert "differentially private with epsilon = " in printed
    assert 0.999 <= names["model"].privacy_.epsilon <= 1.0
    assert "Largest gap: requested .05" in printed


def check_quickstart(names, printed):
    assert names["model"].privacy_.epsilon <= 1.0
    assert max(row.violation for row in names["report"]) < 0.05  # chance of 10,000 rows and noise
    assert "cap" in printed  # the third fit was refused
    assert names["by_person"].privacy_.unit != names["model"].privacy_.unit


def check_ledger(names, printed):
    assert names["ledger"].total() <= 1.0
    assert Path("privacy.json").exists()


CHECKS = {"README.md": check_readme, "quickstart.md": check_quickstart, "ledger.md": check_ledger}


def test_readme_starts_with_the_two_commands():
    commands = [line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.strip()][1:3]
    assert commands[0].startswith("make demo")
    assert commands[1].startswith("make test")


def test_numbers_of_readme_and_results_are_those_of_the_tables():
    """`python -m benchmarks page` writes all three."""
    assert results_page.scoreboard_page() == (ROOT / "docs" / "scoreboard.md").read_text()
    assert results_page.benchmarks_page() == (ROOT / "docs" / "benchmarks.md").read_text()
    assert results_page.readme_with_table() == (ROOT / "README.md").read_text()


def test_numbers_of_the_certificate_page_are_those_of_its_fits():
    page = (ROOT / "docs" / "certificate.md").read_text()
    fits = certificate.read(certificate.RESULTS)
    for line in certificate.summary(fits):
        for count, rate, low, high in re.findall(r"(\d+ of \d+) = (\S+) \((\S+) to (\S+)\)", line):
            assert f"| {count} | {short(rate)} ({short(low)} to {short(high)}) |" in page
    held, missed, unsure = (sum(one.verdict == word for one in fits) for word in ("held", "missed", "cannot tell"))
    assert f"Of the {len(fits)}, {held} were held, {missed} missed, and of {unsure} the certificate cannot tell" in page
    edges = {"below 2,000": 0, "below 5,000": 2_000, "below 10,000": 5_000, "to 40,000": 10_000, "250,000": 40_001}
    for (name, low), high in zip(edges.items(), [*[*edges.values()][1:], math.inf], strict=True):
        for place, epsilon in enumerate((0.3, 1.0, 3.0)):
            widths = [(one.high - one.low) / 2 for one in fits if low <= one.n < high and one.epsilon == epsilon]
            quoted = re.search(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)[1].split(" | ")[place]
            assert float(quoted) == pytest.approx(statistics.median(widths), abs=6 * 10 ** -len(quoted))


def test_numbers_of_the_persons_page_are_those_of_its_fits():
    page = (ROOT / "docs" / "persons.md").read_text()
    quoted = re.findall(r"^\| (\w+) \| (\d+) \| .*$", page, re.MULTILINE)
    assert {table for table, _ in quoted} == set(persons.BOUNDS)
    for table, rows in quoted:
        assert persons.markdown(persons.RESULTS, table, (int(rows),)) in page
    guesses = [
        float(one["error"]) for one in persons.read() if (one["table"], one["method"]) == ("parkinsons", "constant")
    ]
    assert f"has error {statistics.fmean(guesses):.3f}".replace("0.", ".") in page


def short(number):
    """Return a number as pages write it: .044, and 1 for 1.000."""
    return "1" if float(number) == 1 else str(number).removeprefix("0")


def test_numbers_of_the_scaling_page_are_those_of_its_runs():
    page = (ROOT / "docs" / "scaling.md").read_text()
    results = ROOT / "benchmarks" / "results"
    tables = [json.loads(line) for line in (results / "distributed_tables.jsonl").read_text().splitlines()]
    large = {run["mode"]: run for run in tables if run["rows"] == 10_000_000}
    for run in large.values():
        assert f"| {run['prepare_s']:.1f} s | {run['step_ms']:.0f} ms | {run['total_s']:.1f} s |" in page
    assert f"used {large['arrow']['anonymous_memory_mb']:.0f} MB" in page
    ratio = large["dask1"]["total_s"] / large["dask2"]["total_s"]
    assert f"Two Dask workers are {ratio:.1f} times as fast as one" in page
    small = {run["mode"]: run["total_s"] for run in tables if run["rows"] == 1_000_000}
    assert f"two workers: {small['dask2']:.1f} s" in page
    assert f"100 iterations: {small['mllib']:.1f} s" in page
    measured = [large[f"dask{workers}"]["step_ms"] for workers in (1, 2, 4)]
    assert "where {:.0f}, {:.0f} and {:.0f} ms were measured".format(*measured) in page
    row, fixed, each = (float(re.search(rf"{name} = (\d+)", page)[1]) for name in ("c_row", "c_step", "c_worker"))

    def step(batch, workers, cores=1000):  # with the constants of the page
        return 1e-9 * row * 50 * batch / min(workers, cores) + 1e-3 * fixed + 1e-3 * each * workers

    first = [1e3 * step(65_536, workers, 2) for workers in (1, 2, 4)]
    assert "give {:.0f} and {:.0f} ms for 1 and 2 workers, and {:.0f} ms for 4".format(*first) in page
    small, large = ([step(batch, workers) for workers in (1, 10, 100, 1000)] for batch in (65_536, 1_000_000))
    assert "{:.3f} s a step with 1 worker, {:.3f} s with 10, {:.3f} s with 100, {:.0f} s".format(*small) in page
    assert "B = 1,000,000: {:.2f} s, {:.2f} s, {:.2f} s and {:.0f} s".format(*large) in page
    pytest.importorskip("torch")
    distributed = importlib.import_module("benchmarks.distributed")
    runs = [json.loads(line) for line in (results / "distributed.jsonl").read_text().splitlines()]
    times = {world: 1e3 * distributed.best(runs, world)["parts"]["step"] for world in (1, 2, 3)}
    assert f"{times[1]:.0f} ms with one process, {times[2]:.0f} ms with two" in page
    assert f"({2 * times[1] / times[2]:.2f} times the rows per second), {times[3]:.0f} ms with three" in page
    costs = distributed.model_of(runs)
    assert (
        f"c_row {1e3 * costs['row']:.2f} ms, c_par {1e9 * costs['parameter']:.1f} ns, latency "
        f"{1e6 * costs['latency']:.0f} us, bandwidth {1e-9 / costs['byte']:.1f} GB/s"
    ) in page


def test_numbers_of_the_theory_page_are_those_of_the_accountant():
    page = (ROOT / "docs" / "api" / "closed-forms.md").read_text()
    rows = re.findall(r"^\| (\d+), (\S+) \| (\S+), (\d+) \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) == 5
    for epsilon, delta, rate, steps, quoted in rows:
        setting = float(epsilon), float(delta), float(rate), int(steps)
        cells = []
        for rule in (theory.paper_noise, theory.proven_noise):
            try:
                noise = rule(*setting)
            except InvalidInput:
                cells += ["out of range", ""]
                continue
            spent = theory_vs_accountant.spent(noise, *setting[1:])
            text = short(f"{spent:.3g}")
            cells += [f"{noise.gradient_noise:.3g}/{short(f'{noise.laplace_scale:.3g}')}"]
            cells += [f"**{text}**" if spent > setting[0] else text]
        found = calibrate(*setting, histogram="laplace")
        cells += [f"{short(f'{found.gradient_noise:.3g}')}/{found.histogram_noise:.3g}"]
        assert quoted == " | ".join(cells).replace("|  |", "| |")
    bounds = {row[0]: row[-1] for row in theory_vs_accountant.convergence_rows()}
    assert bounds["1e6"] == "inf"
    assert (
        f"infinite for 10^6 rows, {bounds['1e8']} for 10^8, {bounds['1e10']} for 10^10 and {short(bounds['1e12'])}"
        in page.replace("\n", " ")
    )


def test_probabilities_of_the_privacy_page_follow_from_epsilon():
    page = (ROOT / "docs" / "privacy.md").read_text()
    epsilons, chances = (
        re.search(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)[1].split(" | ")
        for name in ("epsilon", "probability at most")
    )
    for epsilon, chance in zip(epsilons, chances, strict=True):
        digits = len(chance.partition(".")[2]) - 1
        assert f"{100 / (1 + math.exp(-float(epsilon))):.{digits}f}%" == chance


def test_figure_of_the_readme_shows_the_tables():
    """`python docs/figures/readme.py` draws it."""
    figure = load_script(ROOT / "docs" / "figures" / "readme.py")
    drawn = figure.FIGURE.read_text()
    lines = figure.lines()
    assert lines
    for line in lines:
        assert line.label in drawn
        assert all(text in drawn for text in line.texts)


def load_script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version


def test_results_are_compact():
    assert sum(path.stat().st_size for path in (ROOT / "benchmarks" / "results").iterdir()) <= 2_000_000


def test_quickstart_shows_what_the_demo_prints():
    """Up to what other processors round: an old table, of models that differ, is off by more than 0.0005."""
    page = (ROOT / "docs" / "quickstart.md").read_text()
    for row in demo.compare():
        (shown,) = re.findall(rf"^    {re.escape(row.name)}  +(.*)$", page, flags=re.MULTILINE)
        accuracy, *gaps = re.findall(r"(?<!of )(?<![\d.])0\.\d{4}", shown)[:3]
        assert float(accuracy) == pytest.approx(row.accuracy, abs=3e-4)
        assert [float(gap) for gap in gaps] == pytest.approx([row.rates_gap, row.odds_gap], abs=2e-3)


GENERATED = {"scoreboard.md", "benchmarks.md"}  # their tables are results


def test_documentation_is_short():
    """Pages and prose of the galleries have at most 25,000 words outside the reference; code and numbers count, bars and operators do not."""
    pages = [page for page in PAGES if page.parent not in (ROOT / "benchmarks", ROOT / "docs" / "api")]
    texts = [re.sub(r"^\|.*$", "", p.read_text(), flags=re.M) if p.name in GENERATED else p.read_text() for p in pages]
    for folder in ("examples", "attacks"):
        texts += [header.read_text() for header in (ROOT / "docs" / folder).glob("*.rst")]
        for script in (ROOT / "docs" / folder).glob("*.py"):
            texts += re.findall(r'\A"""(.*?)"""', script.read_text(), re.DOTALL)
            texts += re.findall(r"^# (?!%%)(.*)$", script.read_text(), re.MULTILINE)
    words = [token for text in texts for token in text.split() if re.search("[A-Za-z0-9]", token)]
    assert len(words) <= 25_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_tests_and_modules_exist(page):
    """Paths of tests and dotted names of the package in prose lead somewhere."""
    text = page.read_text()
    for path in re.findall(r"`((?:tests|benchmarks)/[\w/]+\.(?:py|csv|jsonl?))`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:\w+/)*\w+\.py)`", text):
        if path not in USERS:
            assert any(f"/{known}".endswith(f"/{path}") for known in SOURCES), path
    for name in re.findall(r"`(ratewise(?:\.\w+)+)[`(]", text):
        if "torch" not in name:
            assert resolves(name), name


def resolves(name):
    """Return whether a dotted name is a module, or an attribute of one."""
    found = importlib.import_module("ratewise")
    for depth, part in enumerate(name.split(".")[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(name.split(".")[:depth]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([\w./-]+\.\w+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / source_of(target)).exists(), target


def source_of(target):
    """Return the file that a link leads to, or from which `make docs` generates the page of a gallery."""
    generated = re.fullmatch(r"auto_(\w+)/(\w+)\.rst", target)
    if generated is None:
        return target
    folder, name = generated.groups()
    return f"{folder}/GALLERY_HEADER.rst" if name == "index" else f"{folder}/{name}.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_benchmarks_that_exist(page):
    text = page.read_text()
    for script in re.findall(r"python (benchmarks/[\w/]+\.py)", text):
        assert (ROOT / script).exists(), script
    for name in re.findall(r"python -m benchmarks (\w+)", text):
        assert name in NAMES, name
