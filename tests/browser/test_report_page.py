"""The page in a real browser: every figure drawn, right numbers, small and large, light and dark, no script."""

import json
import re
import warnings

import numpy as np
import pytest

from ratewise import RateConstrainedClassifier, demographic_parity, false_negative_rate, group, rate
from ratewise.datasets import census_like
from ratewise.report import Report

NARROW, WIDE = 360, 1600
MINUS = "\N{MINUS SIGN}"
EVIL = "<script>window.broken=1</script><img src=x onerror=window.broken=1>"
FIGURES = {
    "constraints",
    "tradeoff",
    "calibration",
    "ledger",
    "training-excess",
    "training-multiplier",
    "training-norm",
}


@pytest.fixture(scope="module")
def trained_report():
    rows, others = census_like(6000, random_state=0), census_like(6000, random_state=1)
    public = {
        "classes": rows.classes,
        "group_values": rows.group_values,
        "feature_bounds": rows.feature_bounds,
        "random_state": 0,
    }
    constraints = [demographic_parity("sex", max_gap=0.05), false_negative_rate(0.5, by="region")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RateConstrainedClassifier(constraints, **public)
        model.fit(rows.X, rows.y, sensitive_features=rows.sensitive)
    plain = RateConstrainedClassifier(epsilon=1.0, **public).fit(rows.X, rows.y)
    return Report.from_model(model, others.X, others.y, others.sensitive, baseline=plain)


def many_report():
    """Return a report on a thousand constraints about as many groups and three classes, without scores."""
    rng = np.random.default_rng(0)
    n = 6000
    truth, guess, place = rng.integers(0, 3, n), rng.integers(0, 3, n), np.arange(n) % 1000
    constraints = [rate(1, where=group(place=i)) <= 0.1 + 0.0008 * i for i in range(1000)]
    return Report.from_predictions(truth, guess, {"place": place}, constraints, by=[])


def evil_report():
    truth, guess = np.arange(300) % 2, np.arange(300) // 3 % 2
    groups = np.array([EVIL, "b" * 120])[np.arange(300) // 5 % 2]
    return Report.from_predictions(
        truth,
        guess,
        {EVIL: groups},
        [demographic_parity(EVIL, max_gap=0.2), *((rate(1) <= 0.1 * i).named(f"{EVIL} {i}") for i in range(1, 9))],
        scores=np.linspace(0, 1, 300),
        baseline={EVIL: guess[::-1]},
        name=EVIL,
        title=EVIL,
        notes=[EVIL],
    )


@pytest.fixture(scope="module")
def pages(trained_report, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    reports = {"trained": trained_report, "many": many_report(), "evil": evil_report()}
    for name, report in reports.items():
        report.to_html(folder / f"{name}.html")
    return {name: (report, folder / f"{name}.html") for name, report in reports.items()}


class Visit:
    """A page that is open, with everything it complained about or asked for."""

    def __init__(self, browser, path, width, scheme="light", script=True):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script
        )
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = path.as_uri()
        self.page.goto(self.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def texts(self, selector):
        return self.page.locator(selector).all_inner_texts()


def boxes(visit, selector):
    """Return left, right, width and height of what a selector finds; asking works without scripts too."""
    return visit.page.evaluate(
        """selector => [...document.querySelectorAll(selector)].map(element => {
            const box = element.getBoundingClientRect();
            return [box.left, box.right, box.width, box.height];
        })""",
        selector,
    )


VIEWS = [
    (width, scheme, script) for width in (NARROW, WIDE) for scheme in ("light", "dark") for script in (True, False)
]


@pytest.mark.parametrize(("width", "scheme", "script"), VIEWS)
def test_every_figure_is_drawn_and_nothing_complains(browser, pages, width, scheme, script):
    _, path = pages["trained"]
    with Visit(browser, path, width, scheme, script) as visit:
        page = visit.page
        named = "[...document.querySelectorAll('[data-figure]')].map(figure => figure.dataset.figure)"
        found = set(page.evaluate(named))
        assert found >= FIGURES
        assert {"error-0", "error-1", "rates-0-selection_rate", "rates-1-precision"} <= found
        for name in sorted(found):
            marks = boxes(visit, f"[data-figure='{name}'] svg :is(circle, polyline, rect.part)")
            drawn = [mark for mark in marks if mark[2] > 0 or mark[3] > 0]
            assert drawn, name
            assert all(left >= -1 and right <= width + 1 for left, right, _, _ in drawn), name
        assert min(wide for _, _, wide, _ in boxes(visit, "svg.strip")) > 80
        assert page.locator(".script-only").first.is_visible() == script
        assert visit.complaints == []
        assert visit.requests == [visit.address]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_button(browser, pages, scheme):
    def brightness(page):
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)))

    with Visit(browser, pages["trained"][1], WIDE, scheme) as visit:
        before = brightness(visit.page)
        assert (before > 600) == (scheme == "light")
        visit.page.click("#theme")
        assert (brightness(visit.page) > 600) == (scheme == "dark")
        visit.page.click("#theme")
        assert brightness(visit.page) == before


@pytest.mark.parametrize("name", ["trained", "many", "evil"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_nothing_is_wider_than_the_screen(browser, pages, name, width):
    with Visit(browser, pages[name][1], width) as visit:
        visit.page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("script", [True, False])
def test_numbers_are_those_of_the_data(browser, pages, script):
    report, path = pages["trained"]
    with Visit(browser, path, WIDE, script=script) as visit:
        page = visit.page
        data = json.loads(page.locator("#data").text_content())
        assert data == json.loads(report.to_json())
        by_name = {constraint["name"]: constraint for constraint in data["constraints"]}
        rows = page.query_selector_all("[data-figure='constraints'] tbody tr")
        assert len(rows) == len(data["constraints"])
        for row in rows:
            constraint = by_name[row.get_attribute("data-constraint")]
            assert number(row, ".reached") == pytest.approx(constraint["reached"], abs=5.1e-5)
            low, high = row.query_selector(".interval").inner_text().replace(MINUS, "-").split(" to ")
            assert (float(low), float(high)) == pytest.approx((constraint["low"], constraint["high"]), abs=5.1e-5)
            shown = row.query_selector(".pill").inner_text().strip()
            assert shown == constraint["state"]
        groups = data["groupings"][0]["groups"]
        for measure in ("selection_rate", "true_positive_rate", "false_positive_rate", "precision"):
            cells = page.query_selector_all(f"[data-figure='rates-0-{measure}'] tbody td.number")
            shown = [float(cell.inner_text().split()[0]) for cell in cells]
            expected = [each["rates"]["1"][measure]["value"] for each in [*groups, data["everyone"]]]
            assert shown == pytest.approx(expected, abs=5.1e-5)
        shown = [number(row, ".accuracy") for row in page.query_selector_all("[data-figure='tradeoff'] tbody tr")]
        assert shown == pytest.approx([model["accuracy"]["value"] for model in data["models"]], abs=5.1e-5)


def number(row, selector):
    return float(row.query_selector(selector).inner_text().replace(MINUS, "-"))


def test_dots_stand_where_their_numbers_say(browser, pages):
    """A dot's place is a straight line of its gap: read three scales off the screen."""
    with Visit(browser, pages["trained"][1], WIDE) as visit:
        data = json.loads(visit.page.locator("#data").text_content())
        gaps = {constraint["name"]: constraint["excess"] for constraint in data["constraints"]}
        rows = visit.page.query_selector_all("[data-figure='constraints'] tbody tr")
        points = []
        for row in rows:
            dot = row.query_selector("circle.dot")
            if dot is not None:
                box = dot.bounding_box()
                points.append((gaps[row.get_attribute("data-constraint")], box["x"] + box["width"] / 2))
        assert len(points) >= 3
        x, y = np.array(sorted(points)).T
        slope, offset = np.polyfit(x, y, 1)
        assert slope > 0
        assert np.abs(slope * x + offset - y).max() < 1.0
        zero = rows[0].query_selector("line.zero").bounding_box()["x"]
        assert zero == pytest.approx(offset, abs=1.0)


def test_the_verdict_says_the_counts(browser, pages):
    for name, (report, path) in pages.items():
        with Visit(browser, path, WIDE, script=False) as visit:
            said = visit.page.locator("#verdict .headline").first.inner_text()
            counts = {state: count for state, count in report.content.counts.items() if count}
            assert counts
            assert all(f"{count} {state}" in said for state, count in counts.items()), name


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("trained", NARROW, "light"),
        ("trained", NARROW, "dark"),
        ("trained", WIDE, "light"),
        ("trained", WIDE, "dark"),
        ("evil", NARROW, "dark"),
    ],
)
def test_contrast_and_labels_pass_axe(browser, pages, name, width, scheme, violations):
    with Visit(browser, pages[name][1], width, scheme) as visit:
        visit.page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        found = violations(visit.page)
        said = [(each["id"], [node["html"][:160] for node in each["nodes"]][:3]) for each in found]
        assert said == []


def test_axe_would_notice(browser, tmp_path, violations):
    path = tmp_path / "bad.html"
    path.write_text("<html><body><p style='color:#ccc;background:#fff'>faint</p><input></body></html>")
    with Visit(browser, path, WIDE) as visit:
        found = {each["id"] for each in violations(visit.page)}
        assert {"color-contrast", "label", "html-has-lang"} <= found


@pytest.mark.parametrize("script", [True, False])
def test_hostile_texts_do_not_run(browser, pages, script):
    _, path = pages["evil"]
    with Visit(browser, path, WIDE, script=script) as visit:
        assert visit.page.title() == " ".join(EVIL.split())
        assert visit.page.locator("h1").inner_text() == EVIL
        assert visit.page.query_selector("img") is None
        assert visit.complaints == []
        assert visit.requests == [visit.address]
        if script:
            assert visit.page.evaluate("window.broken") is None


def test_a_script_that_got_in_would_not_run(browser, pages, tmp_path):
    """The policy of the page stops what escaping might have missed."""
    page = pages["trained"][1].read_text(encoding="utf-8")
    path = tmp_path / "tampered.html"
    path.write_text(page.replace("<main", "<script>window.broken=1</script><main"), encoding="utf-8")
    with Visit(browser, path, WIDE) as visit:
        assert visit.page.evaluate("window.broken") is None
        assert any("Content Security Policy" in said for said in visit.complaints)


def test_a_thousand_constraints_open_folded_and_can_be_searched(browser, pages):
    report, path = pages["many"]
    with Visit(browser, path, WIDE) as visit:
        page = visit.page

        def visible():
            rows = "[...document.querySelectorAll('tr[data-constraint]')].filter(row => row.checkVisibility())"
            return page.evaluate(f"{rows}.map(row => row.dataset.constraint)")

        assert visible() == [constraint.name for constraint in report.content.by_worst()[:12]]
        page.fill("#filter", "place=77)")
        assert visible() == [
            name for name in (constraint.name for constraint in report.content.constraints) if "=77)" in name
        ]
        page.fill("#filter", "")
        page.select_option("#state", "missed")
        missed = report.content.counts["missed"]
        assert len(visible()) == missed > 12
        assert page.locator("#filter-count").inner_text() == f"{missed} of 1,000 shown"


def test_another_curve_can_be_put_in_front(browser, pages):
    report, path = pages["trained"]
    curves = report.content.training.curves
    with Visit(browser, path, WIDE) as visit:
        page = visit.page

        def front():
            return page.locator("#training-excess .line.main").get_attribute("data-name")

        assert front() == curves[0].name
        page.select_option("#pick", "2")
        assert front() == curves[2].name
        column = page.locator("#training-excess rect.column").nth(30)
        column.hover()
        every = max(1, len(report.content.training.steps) // 60)
        expected = f"{curves[2].excess[30 * every]:+.4f}".replace("-", MINUS)
        assert page.locator("#tip").inner_text().endswith(expected)


def test_marks_speak_when_pointed_at_and_by_keyboard(browser, pages):
    report, path = pages["trained"]
    with Visit(browser, path, WIDE) as visit:
        page = visit.page
        first = report.content.calibration[0].bins
        plot = page.locator("[data-figure='calibration'] .plot").first
        plot.focus()
        page.keyboard.press("ArrowRight")
        assert f"score {first[0].score:.4f}" in page.locator("#tip").inner_text()
        page.keyboard.press("ArrowRight")
        assert f"score {first[1].score:.4f}" in page.locator("#tip").inner_text()
        page.keyboard.press("Escape")
        assert not page.locator("#tip").is_visible()
        page.locator("[data-figure='constraints'] svg.strip").first.hover()
        assert report.content.by_worst()[0].name in page.locator("#tip").inner_text()


def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser, pages):
    with Visit(browser, pages["trained"][1], WIDE) as visit:
        page = visit.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
            width = page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
            assert width >= 2 or page.evaluate("document.activeElement === document.body")
        assert {"theme", "pick", "save", "SUMMARY", "A"} <= reached


def test_paper_is_light_unfolded_and_saves_as_pdf(browser, pages):
    with Visit(browser, pages["trained"][1], WIDE, "dark") as visit:
        page = visit.page
        page.emulate_media(media="print", color_scheme="dark")
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == "rgb(255, 255, 255)"
        assert not page.locator("nav").is_visible()
        statement = page.locator("#privacy pre")
        assert not statement.is_visible()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert statement.is_visible()
        assert not page.locator("details.behind").first.is_visible()
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert not statement.is_visible()
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_the_data_can_be_saved(browser, pages):
    report, path = pages["trained"]
    with Visit(browser, path, WIDE) as visit:
        with visit.page.expect_download() as waiting:
            visit.page.click("#save")
        saved = json.loads(waiting.value.path().read_text(encoding="utf-8"))
        assert saved == json.loads(report.to_json())


def test_in_a_frame_as_in_a_notebook(browser, pages, tmp_path):
    report, _ = pages["trained"]
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><html><body>{report._repr_html_()}</body></html>", encoding="utf-8")
    with Visit(browser, path, WIDE) as visit:
        frame = visit.page.frames[1]
        assert frame.locator(".headline").inner_text()
        frame.locator("#theme").click()
        assert visit.complaints == []


def test_a_missing_browser_is_a_failure_where_it_is_required(monkeypatch, unavailable):
    monkeypatch.setenv("RATEWISE_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no browser here"):
        unavailable("no browser here")
    monkeypatch.delenv("RATEWISE_REQUIRE_BROWSER")
    with pytest.raises(pytest.skip.Exception, match="no browser here"):
        unavailable("no browser here")
