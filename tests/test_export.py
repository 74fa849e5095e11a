"""The course as pages and as slides; and what GitHub's preview needs."""

import os
import posixpath
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from bs4 import BeautifulSoup

from tests.servers import chromium

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ci"))
import export  # noqa: E402

COURSE = export.notebooks()
WIDGET = "application/vnd.jupyter.widget-view+json"
TABLE = {"table", "caption", "tr", "td"}
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["course"]["home"]
ELSEWHERE = ("https://colab.research.google.com/github/", f"{HOME or 'no home'}/")

every_notebook = pytest.mark.parametrize("file", COURSE, ids=lambda file: Path(file).stem)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    export.main("html", folder)
    export.main("slides", folder)
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Every file of the site, read: its place -> what is in it."""
    files = sorted(site.rglob("*.html"))
    return {f.relative_to(site).as_posix(): BeautifulSoup(f.read_text("utf-8"), "html.parser") for f in files}


def bundles(file):
    """What the outputs of a notebook hold: each output's data by type."""
    return [o.data for cell in COURSE[file].cells for o in cell.get("outputs", []) if "data" in o]


def texts(file):
    return [cell.source for cell in COURSE[file].cells if cell.cell_type == "markdown"]


def place(file, folder=""):
    return f"{folder}{Path(file).stem}.html"


# -- every file of the site ---------------------------------------------------------------


def test_there_is_a_page_and_slides_for_every_notebook_and_an_index(pages):
    assert {place(file) for file in COURSE} | {place(file, "slides/") for file in COURSE} <= set(pages)
    for page in ("", "slides/"):
        assert {link["href"] for link in pages["index.html"].select("a[href]")} >= {
            place(file, page) for file in COURSE
        }


def test_every_file_has_the_frame_of_an_accessible_page(pages):
    for name, page in pages.items():
        assert page.html["lang"] == "en", name
        assert page.title.string.strip(), name
        assert page.select_one("meta[name=viewport]")["content"].startswith("width=device-width"), name
        assert len(page.select("main")) == 1, name
        assert len(page.select("h1")) == 1, name
        if not name.startswith("slides/"):
            assert page.select_one("body > a:first-child")["href"] == f"#{page.main['id']}", name


def test_nothing_is_fetched_from_anywhere(pages):
    for name, page in pages.items():
        fetched = page.select(
            "[src], [srcset], [poster], link[href], object, iframe, script[src], [background]"
        )
        addresses = [tag.get("src") or tag.get("href", "nothing") for tag in fetched]
        assert all(address.startswith("data:") for address in addresses), name
        assert page.select("style"), name
        assert not re.search(r"@import|url\(", str(page.select("style"))), name


def test_every_link_leads_somewhere(pages):
    for name, page in pages.items():
        for link in page.select("a[href]"):
            path, _, anchor = link["href"].partition("#")
            if path.startswith(ELSEWHERE):
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            assert target in pages, f"{name}: {link['href']}"
            if anchor:
                assert pages[target].find(id=anchor), f"{name}: {link['href']}"


def test_source_files_are_linked_to_the_repository_where_it_has_an_address(tmp_path):
    at_home = export.Site(tmp_path, "https://github.com/a/b")
    there = at_home.address("../utils/attention.py", "notebooks/01.ipynb", "01.html")
    assert there == "https://github.com/a/b/blob/main/utils/attention.py"
    assert at_home.address("02.ipynb#Live", "notebooks/01.ipynb", "slides/01.html") == "../02.html#Live"
    assert not at_home.sources


def test_everything_folded_is_closed_and_holds_its_text(pages):
    for name, page in pages.items():
        for folded in page.select("details"):
            assert not folded.has_attr("open"), name
            summary = folded.find(recursive=False)
            assert summary.name == "summary", name
            assert len(folded.get_text()) > len(summary.get_text()) + 5, f"{name}: {folded}"


@every_notebook
def test_no_solution_stands_outside_what_is_folded(pages, file):
    solutions = re.findall(r"(?s)<summary>Solution</summary>\s*```python\n(.*?)```", "\n".join(texts(file)))
    assert solutions
    for name in (place(file), place(file, "slides/")):
        seen = "".join(text for text in pages[name].strings if not text.find_parent("details"))
        assert not [code for code in solutions if code.strip() in seen], name
        assert all(code.strip() in pages[name].get_text() for code in solutions), name


@every_notebook
@pytest.mark.parametrize("folder", ["", "slides/"])
def test_every_picture_is_described_by_its_own_sentence(pages, file, folder):
    described = [data["text/plain"] for data in bundles(file) if "image/png" in data]
    pictures = pages[place(file, folder)].select("img")
    assert [picture["alt"] for picture in pictures] == described
    live = sum(WIDGET in data and "image/png" in data for data in bundles(file))
    assert str(pages[place(file, folder)]).count("This picture is live when") == live


@every_notebook
def test_every_formula_is_drawn_by_the_browser(pages, file):
    prose = re.sub(r"(?s)```.*?```|`[^`\n]*`", "", "\n\n".join(texts(file)))
    blocks = re.findall(r"(?s)\$\$.+?\$\$", prose)
    inline = re.findall(r"\$[^$]+\$", re.sub(r"(?s)\$\$.+?\$\$", "", prose))
    page = pages[place(file)]
    assert len(page.select("math[display=block]")) == len(blocks)
    later = len(
        page.select("wbr + math")
    )  # a chain of equations is drawn in pieces, to break before each "="
    assert len(page.select("math[display=inline]")) - later == len(inline)
    for text in page.main.find_all(string=re.compile(r"\$")):
        assert text.find_parent(["pre", "code"]), text


@pytest.mark.parametrize("formula", [r"\nonsense x", r"\begin{nothing} a & b \end{nothing}"])
def test_a_formula_that_cannot_be_drawn_stops_the_export(formula):
    with pytest.raises(ValueError, match="no MathML for the formula"):
        export.mathml(formula)


def test_dollars_in_code_and_escaped_ones_are_no_formulas(tmp_path):
    renderer = export.Renderer(export.Site(tmp_path), "README.md", "index.html")
    shown = export.markdown("`$a$` costs \\$5, not \\$6\n\n```\n$b$\n```", renderer)
    assert "<math" not in shown
    assert "costs $5, not $6" in shown


def test_the_same_notebooks_give_the_same_bytes(site, tmp_path):
    script = "import sys; sys.path.insert(0, '.ci'); import export, pathlib\n"
    for command in ("slides", "html"):  # in the other order
        script += f"export.main({command!r}, pathlib.Path({str(tmp_path)!r}))\n"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=True)
    files = sorted(f.relative_to(site) for f in site.rglob("*.html"))
    assert files == sorted(f.relative_to(tmp_path) for f in tmp_path.rglob("*.html"))
    assert [f for f in files if (site / f).read_bytes() != (tmp_path / f).read_bytes()] == []


@every_notebook
def test_slides_say_all_that_the_page_says(pages, file):
    def said(page, leave=()):
        parts = page.main.select(".text p, .text li, .text td, .text h1, .text h2, .text summary, pre")
        return [part.get_text() for part in parts if not part.get_text().startswith(leave)]

    page = said(pages[place(file)], ("predict(", "# @title Run me first"))
    assert said(pages[place(file, "slides/")]) == page
    assert not pages[place(file, "slides/")].select("[hidden]")  # without script, everything is there


# -- in a browser -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser):
    """An empty tab that remembers what was asked for and what went wrong."""
    tab = browser.new_page(viewport={"width": 1280, "height": 720})
    tab.asked, tab.problems = [], []
    tab.on("request", lambda request: tab.asked.append(request.url))
    tab.on("console", lambda message: tab.problems.append(message.text))
    tab.on("pageerror", lambda error: tab.problems.append(str(error)))
    yield tab
    tab.close()


def test_every_file_opens_from_a_disk_asks_for_nothing_and_fits_every_width(tab, site, pages):
    for name in pages:
        tab.goto((site / name).as_uri())
        for width in (375, 800, 1280):
            tab.set_viewport_size({"width": width, "height": 720})
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, f"{name} at {width}"
        assert tab.locator("details[open]").count() == 0, name
        assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)"), (
            name
        )
    files = {(site / name).as_uri() for name in pages}
    assert [url for url in tab.asked if not url.startswith("data:") and url not in files] == []
    assert tab.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_to_mend_in_any_page(tab, site, scheme):
    tab.emulate_media(color_scheme=scheme)
    found = {}
    for name in ["index.html", *map(place, COURSE), place(next(iter(COURSE)), "slides/")]:
        tab.goto((site / name).as_uri())
        tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        tab.evaluate(AXE_SCRIPT)
        results = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        found |= {(name, rule["id"]): rule["nodes"][0]["html"][:200] for rule in results}
    assert found == {}


def test_a_reader_needs_no_mouse(tab, site):
    tab.goto((site / place(next(iter(COURSE)))).as_uri())
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert tab.url.endswith("#content")  # past the links at the top
    solution = tab.locator("details", has_text="Solution").first
    solution.locator("summary").focus()
    tab.keyboard.press("Enter")
    assert solution.get_attribute("open") is not None
    assert solution.locator("pre").is_visible()


def test_slides_are_moved_by_keys_and_the_address_remembers_where(tab, site):
    tab.goto((site / place(next(iter(COURSE)), "slides/")).as_uri())
    number = tab.locator(".slide").count()

    def after(*keys):
        for key in keys:
            tab.keyboard.press(key)
        assert tab.locator(".slide:visible").count() == 1
        return int(tab.get_by_role("status").inner_text().split(" / ")[0])

    assert after() == 1
    assert after("ArrowRight", "PageDown", "Space") == 4
    assert after("ArrowLeft", "PageUp") == 2
    assert after("End", "ArrowRight") == number
    tab.reload()
    assert after() == number
    assert after("Home", "ArrowLeft") == 1
    tab.get_by_role("button", name="Next slide").click()
    assert after() == 2
    tab.get_by_role("link", name="6 Real words").click()
    assert tab.locator(".slide:visible h2").inner_text() == "6 Real words"


def test_on_a_slide_the_space_bar_opens_an_answer_and_stays(tab, site):
    tab.goto((site / place(next(iter(COURSE)), "slides/")).as_uri())
    for _ in range(40):
        if tab.locator(".slide:visible details").count():
            break
        tab.keyboard.press("ArrowRight")
    else:
        pytest.fail("no answer on 40 slides")
    before = tab.url
    answer = tab.locator(".slide:visible details").first
    answer.locator("summary").focus()
    tab.keyboard.press("Space")
    assert (answer.get_attribute("open"), tab.url) == ("", before)


@every_notebook
def test_most_slides_fit_a_projector(tab, site, file):
    tab.goto((site / place(file, "slides/")).as_uri())
    heights = tab.evaluate(
        """[...document.querySelectorAll(".slide")].map((slide, i) => {
            show(i + 1, false); return document.documentElement.scrollHeight; })"""
    )
    tall = [i + 1 for i, height in enumerate(heights) if height > 720]
    assert len(tall) <= len(heights) / 5, tall


# -- what GitHub shows of a notebook ------------------------------------------------------


@every_notebook
def test_a_notebook_is_small_enough_for_githubs_preview(file):
    """GitHub names no limit. Its API gives files up to 1 MB whole; reports of failures start above 2 MB."""
    assert (ROOT / file).stat().st_size < 1_000_000


@every_notebook
def test_where_a_widget_is_a_preview_shows_a_picture_or_a_question_or_a_sentence(file):
    views = [data for data in bundles(file) if WIDGET in data]
    assert views
    for data in views:
        sentence = re.fullmatch(r"[A-Z][^<>(){}=]+\.", data["text/plain"])
        assert "image/png" in data or "text/html" in data or sentence, data["text/plain"]


@every_notebook
def test_a_preview_loses_no_html_that_the_course_relies_on(file):
    prose = re.sub(r"(?s)```.*?```|`[^`\n]*`|<!--.*?-->", "", "\n".join(texts(file)))
    assert set(re.findall(r"</?(\w+)", prose)) <= {"details", "summary"}
    for data in bundles(file):
        shown = BeautifulSoup(data.get("text/html", ""), "html.parser")
        kinds = {tag.name for tag in shown.find_all(True)}
        assert kinds <= {"p", "b", "div", "ul", "li", "details", "summary", *TABLE}, kinds
        said = {attribute for tag in shown.find_all(True) for attribute in tag.attrs}
        assert said <= {"style"}, said  # it is dropped there, and only colours and margins go with it


@every_notebook
def test_formulas_have_the_form_that_github_knows(file):
    prose = re.sub(r"(?s)```.*?```|`[^`\n]*`", "", "\n".join(texts(file)))
    assert not re.search(r"\\[(\[]|(?<!\\)\\\]", prose)
    outside = re.sub(r"(?s)\$\$.+?\$\$", "", prose)
    assert "\\begin" not in outside
    for formula in re.findall(r"\$([^$]+)\$", outside):
        assert formula == formula.strip()
        assert "\n" not in formula
