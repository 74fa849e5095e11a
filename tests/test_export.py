"""The course as pages and as slides; and what GitHub's preview needs."""

import os
import posixpath
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
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
    assert pages["docs/teaching.md.html"].h1.string == "Teaching with the course"
    assert pages["docs/glossary.md.html"].select("table td")


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
            if path.startswith("https:" if name.startswith("docs/") else ELSEWHERE):
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


def test_a_site_for_a_class_has_hints_and_no_solutions(tmp_path):
    export.main("html", tmp_path, solutions=False)
    assert {file.stem for file in tmp_path.glob("docs/*")} == {"glossary.md"}  # teaching.md is for teachers
    for file in COURSE:
        text = (tmp_path / place(file)).read_text()
        assert "<summary>Hint 1</summary>" in text
        assert "<summary>Solution" not in text


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
def test_slides_say_all_that_the_page_says_but_what_only_a_run_makes_true(pages, file):
    only_live = (
        *("predict(", "# @title Run me first", "sum_up(", "Your first answers were right in 0"),
        *("Run one cell at a time", "The cell below comes first"),
    )

    def said(page, leave=()):
        parts = page.main.select(".text p, .text li, .text td, .text h1, .text h2, pre")
        texts = [part.get_text() for part in parts]
        return [text for text in texts if not text.startswith(leave) and "not attempted yet" not in text]

    page, slides = pages[place(file)], pages[place(file, "slides/")]
    assert said(slides) == said(page, only_live)
    assert "not attempted yet" not in slides.get_text()
    assert not slides.select(".slide[hidden]")  # without script, everything is there


@every_notebook
def test_nothing_follows_a_question_on_its_slide(pages, file):
    questions = pages[place(file, "slides/")].find_all("b", string="Predict.")
    assert len(questions) == sum(cell.source.startswith("predict(") for cell in COURSE[file].cells)
    for question in questions:
        assert not question.find_parent(class_="cell").find_next_siblings()


def slides_of(pages, file):
    """What stands on each slide, below the name of its part."""
    slides = pages[place(file, "slides/")].select(".slide")
    return [slide.find_all(class_=["text", "cell"], recursive=False) for slide in slides]


@every_notebook
def test_a_part_and_an_exercise_begin_a_slide(pages, file):
    for first, *others in slides_of(pages, file):
        assert not [one for one in others if one.select("h1, h2")]
        exercises = [one for one in others if re.match(r"[B-Z]\. .*\([●○]{5}", one.get_text())]
        assert not exercises, first


def test_hints_and_solutions_stay_with_their_exercise(pages):
    slides = [slide for file in COURSE for slide in slides_of(pages, file)]
    alone = [before for before, after in pairwise(slides) if after[0].find("summary", string="Hint 1")]
    lines = [len(slide[-1].get_text().splitlines()) for slide in alone]
    assert all(count > 20 for count in lines), lines  # there, both do not fit


def test_a_text_that_announces_its_code_stands_with_it_unless_that_fills_a_slide(pages):
    slides = [slide for file in COURSE for slide in slides_of(pages, file)]
    announced = [
        after[0] for before, after in pairwise(slides) if before[-1].get_text().strip().endswith(":")
    ]
    small = [one for one in announced if "drawn" not in one["class"] and len(one.get_text()) < 500]
    assert small == []


@every_notebook
def test_a_figure_at_rest_shows_its_arithmetic(pages, file):
    outputs = [output for cell in COURSE[file].cells for output in cell.get("outputs", [])]
    pictures = [output.get("metadata", {}).get("image/png", {}) for output in outputs]
    traces = [picture["trace"] for picture in pictures if "trace" in picture]
    assert traces or "trace" not in "".join(cell.source for cell in COURSE[file].cells)
    for page in (pages[place(file)], pages[place(file, "slides/")]):
        assert [shown.get_text() for shown in page.select("figure > pre")] == traces


@pytest.mark.parametrize(
    ("printed", "prose"),
    [
        ("01-softmax: right", True),
        ("a table  of two columns\n" + "and a long line " * 6, True),
        ("pre    1.0  2.0\npost   3.0  4.0", False),
        ("tensor([[1., 0.],\n        [0., 1.]])", False),
    ],
)
def test_a_sentence_is_broken_where_it_must_and_a_table_never(printed, prose):
    assert export.is_prose(printed) == prose


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
    course = list(map(place, COURSE))
    for name in ["index.html", *course[: None if scheme == "light" else 1], f"slides/{course[0]}"]:
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


def heights(tab, what):
    """A number for each slide: of the page, or of what stands on the slide."""
    return tab.evaluate(
        f"""[...document.querySelectorAll(".slide")].map((slide, i) => {{
            show(i + 1, false); return {what}; }})"""
    )


@every_notebook
def test_nearly_all_slides_fit_few_are_nearly_empty_and_pictures_are_large(tab, site, file):
    tab.goto((site / place(file, "slides/")).as_uri())
    slides = heights(
        tab,
        """[frame.scrollHeight, slide.lastElementChild.getBoundingClientRect().bottom,
            [...slide.querySelectorAll("img")].map(one => {
                const [width, height] = [one.clientWidth, one.clientHeight];
                const scale = Math.min(width / one.naturalWidth, height / one.naturalHeight);
                return [scale * one.naturalWidth / 1280, scale * one.naturalHeight / 720]; })]""",
    )
    assert len([tall for tall, _, _ in slides if tall > 720]) <= 2, slides
    assert len([end for _, end, _ in slides if end < 170]) <= len(slides) / 8, slides
    shares = [share for _, _, pictures in slides for share in pictures]
    assert shares
    assert [share for share in shares if share[0] < 0.85 and share[1] < 0.45] == []  # of width and height


def test_a_slide_that_is_too_tall_says_so_and_is_scrolled_before_the_next_one(tab, site):
    tab.goto((site / place(next(iter(COURSE)), "slides/")).as_uri())
    tab.set_viewport_size({"width": 1280, "height": 300})
    tall = next(i + 1 for i, h in enumerate(heights(tab, "frame.scrollHeight")) if 350 < h < 500)
    tab.evaluate(f"show({tall})")
    more = tab.get_by_text("more below")

    def at(key):
        tab.keyboard.press(key)
        place = int(tab.get_by_role("status").inner_text().split(" / ")[0])
        return place - tall, tab.evaluate("scrollY > 0"), more.is_visible()

    assert more.is_visible()
    assert at("Space") == (0, True, False)
    assert at("Shift+Space")[:2] == (0, False)
    assert at("PageDown") == (0, True, False)
    assert at("PageDown")[:2] == (1, False)
    assert at("PageUp")[:2] == (0, False)
    assert at("ArrowRight")[0] == 1  # without detours
    tab.set_viewport_size({"width": 1280, "height": 2000})
    more.wait_for(state="hidden", timeout=5000)  # the page hears of its new size a little later


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
