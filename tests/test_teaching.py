"""The teacher's guide and the glossary say what the notebooks say."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from benchmarks import kernels

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
NOTEBOOKS = {path.stem[:2]: path for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))}
PER_VOTE = 2  # minutes, as the guide says
every_notebook = pytest.mark.parametrize("number", NOTEBOOKS)


def flat(text):
    """On one line, without links: for comparison."""
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)|<!--.*?-->", r"\1", text).split())


def sections(number):
    """Heading -> all text and code under it."""
    found = {"": ""}
    heading = ""
    for cell in nbformat.read(NOTEBOOKS[number], as_version=4).cells:
        if cell.cell_type == "markdown" and (new := re.search(r"(?m)^## (.+)$", cell.source)):
            before, after = cell.source[: new.start()], cell.source[new.start() :]
            found[heading] += before
            heading = new[1]
            found[heading] = after
        else:
            found[heading] += f"\n{cell.source}"
    return found


def minutes(number):
    """Part, or "Exercises" -> the minutes that the notebook states."""
    rows = re.findall(r"(?m)^\| \[(\d+|Exercises)[^\]]*\]\([^)]*\) \| (\d+) \|$", sections(number)[""])
    return {part: int(time) for part, time in rows}


def exercises(number):
    """Letter -> name, difficulty, minutes."""
    text = sections(number)["Exercises"]
    found = re.findall(r"\*\*([A-Z])\. (.+?)\*\* \(([●○]+), (\d+) minutes\)", text)
    return {letter: (name, dots, int(time)) for letter, name, dots, time in found}


def chapter(number):
    """What the guide says about one notebook."""
    return re.search(rf"(?ms)^## {number} .*?(?=^## )", GUIDE)[0]


# -- the guide ----------------------------------------------------------------------------


@every_notebook
def test_each_chapter_has_title_minutes_needs_and_objectives_of_the_notebook(number):
    head, said = sections(number)[""], chapter(number)
    assert re.search(r"(?m)^# (.+)$", head)[1] == re.match(r"## (.+)", said)[1]
    stated = minutes(number)
    together = sum(stated.values()) - stated["Exercises"]
    assert f"{together} minutes, and {stated['Exercises']} for the exercises." in flat(said)
    assert flat(re.search(r"(?m)^You need .+$", head)[0]) in flat(said)
    objectives = re.findall(r"(?m)^- .+$", head)
    assert re.findall(r"(?m)^- .+$", said) == objectives
    assert len(objectives) >= 4


@every_notebook
def test_each_chapter_lists_the_exercises_of_the_notebook(number):
    listed = flat(chapter(number)).split("**Exercises:** ")[1]
    found = exercises(number).items()
    assert listed == "; ".join(f"{a} {name} ({dots}, {time})" for a, (name, dots, time) in found) + "."


@every_notebook
def test_each_misconception_is_met_in_a_part_that_exists(number):
    rows = re.findall(r"(?m)^\| (.+?) \| (\d+ .+?) \| (.+?) \|$", chapter(number))
    assert 2 <= len(rows) <= 3
    for _, part, question in rows:
        assert part in sections(number)
        assert re.search(r"\? \(.+\)$", question), "a question, and its answer in brackets"


@every_notebook
def test_each_chapter_names_controls_that_the_live_figures_have(number):
    drag = re.search(r"(?s)\*\*Drag\*\* (.+?)\n\n", chapter(number))[1]
    code = "\n".join(sections(number).values())
    controls = set(re.findall(r'"(\w+)": Choice\(', code))
    named = re.findall(r"`([a-z_]+)`", drag)
    assert named[0] in controls
    assert len(set(named) & controls) >= 2 or len(controls) == 1
    for part in re.findall(r"[Ii]n (\d+)\b", drag):
        heading = next(h for h in sections(number) if h.startswith(f"{part} "))
        assert "LiveFigure(" in sections(number)[heading], heading


@every_notebook
def test_what_may_be_left_out_saves_the_minutes_that_it_says(number):
    parts, saved = re.search(
        r"\*\*Short of time:\*\* parts ([\d, ]+) \((\d+) minutes\)", chapter(number)
    ).groups()
    assert int(saved) == sum(minutes(number)[part] for part in parts.split(", "))


def plans():
    return [re.findall(r"(?m)^\| (\d\d) \| ([\d, ]+) \| ?([A-F]?) ?\| (\d+) \|$", plan) for plan in
            re.split("One day", re.search(r"(?s)## Sessions.*?(?=\n## )", GUIDE)[0])]  # fmt: skip


def test_sessions_add_up():
    for plan in plans():
        assert [row[0] for row in plan] == list(NOTEBOOKS)
        for number, parts, exercise, time in plan:
            votes = sum(
                text.count("\npredict(")
                for heading, text in sections(number).items()
                if heading.split(" ")[0] in parts.split(", ")
            )
            own = sum(minutes(number)[part] for part in parts.split(", "))
            homework = exercises(number)[exercise][2] if exercise else 0
            assert int(time) == own + PER_VOTE * votes + homework, number


def test_sessions_fit_into_90_minutes_and_a_day_into_five_hours():
    sessions, day = plans()
    assert max(int(row[3]) for row in sessions) <= 90
    assert abs(sum(int(row[3]) for row in day) - 300) <= 5


def test_is_read_in_a_quarter_of_an_hour():
    visible = re.sub(r"(?s)```.*?```|\]\([^)]*\)|<!--.*?-->", "", GUIDE)
    assert sum(bool(re.search(r"\w", word)) for word in visible.split()) <= 2600


@pytest.mark.parametrize("page", ["docs/teaching.md", "docs/glossary.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    headings = {h.lower().replace(" ", "-") for h in re.findall(r"(?m)^#+ (.+)$", text)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings
        elif not target.startswith("https://"):
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_commands_of_the_guide_exist():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"`(?:.*? )?make (\w+)", GUIDE))
    targets = " ".join(re.findall(r"(?m)^([\w -]+):(?!=)", makefile)).split()
    assert named <= set(targets)


# -- what a class needs of a machine ------------------------------------------------------


def test_the_guides_numbers_are_the_measured_ones():
    record = json.loads((ROOT / "docs" / "kernels.json").read_text())
    assert kernels.MARKED.search(GUIDE)[0] == kernels.tables(record)
    assert kernels.SYSTEM == 1000 and kernels.HEADROOM == 1.3  # the guide says so in words
    largest = max(one["own"] for one in record["notebooks"])
    assert kernels.HEADROOM * (record["server"]["own"] + 2 * largest) < 2000  # "2 GB: room for two kernels"


def test_a_kernel_tells_its_memory_and_time(tmp_path):
    pytest.importorskip("resource")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell("large = bytearray(b'1') * 300_000_000\ndel large")]
    nbformat.write(notebook, tmp_path / "large.ipynb")
    found = kernels.measure(tmp_path / "large.ipynb")
    assert 300 < found["own"] <= found["peak"]
    assert 0 < found["seconds"] < 60


RECORD = {
    "notebooks": [
        {"name": "notebook 01", "peak": 400.0, "own": 300.0, "seconds": 10.0},
        {"name": "notebook 02", "peak": 601.0, "own": 501.0, "seconds": 51.0},
    ],
    "server": {"peak": 100.0, "own": 90.0, "seconds": 1.0},
}


def test_missed_bars_are_said_in_words():
    assert kernels.shortfalls(RECORD) == [
        "SHORT: notebook 02 takes 601 MB, over 600",
        "SHORT: 61 CPU s in all, over 60",
    ]
    met = {"notebooks": RECORD["notebooks"][:1], "server": RECORD["server"]}
    assert kernels.shortfalls(met) == []


def test_students_are_counted_with_the_largest_kernel_what_is_shared_once_and_headroom():
    assert kernels.students(8, 1, RECORD) == int((8000 - 1000 - 100) / (1.3 * (90 + 501)))
    assert kernels.students(1, 1, RECORD) == 0


# -- the glossary -------------------------------------------------------------------------

TERMS = re.findall(r"(?m)^\| (.+?) \| (.+?) \| (.+?) \| (\d\d) \| (.+?) \|$", GLOSSARY)
# What the notebooks print in bold only for its weight (without a final s):
NOT_TERMS = {
    *("all", "animal", "action", "row", "try thi", "turned over", "hidden", "tired", "wide"),
    *("shape", "place", "neighbour", "mode", "device"),  # the headings of notebook 05's list of checks
}


def plain(text):
    return re.sub(r"[-_`\s]+", " ", text).lower()


@pytest.mark.parametrize(("term", "chinese", "meaning", "number", "part"), TERMS, ids=[t[0] for t in TERMS])
def test_a_term_stands_where_the_glossary_says(term, chinese, meaning, number, part):
    assert part in sections(number)
    assert plain(term) in plain(sections(number)[part])
    assert re.search(r"[\u4e00-\u9fff]", chinese)
    assert meaning


def test_no_term_is_listed_twice_and_they_come_in_the_order_of_use():
    assert len({plain(term) for term, *_ in TERMS}) == len(TERMS)
    places = [(number, int(part.split()[0])) for *_, number, part in TERMS]
    assert places == sorted(places)


@every_notebook
def test_every_word_that_a_notebook_prints_in_bold_is_in_the_glossary(number):
    known = {plain(term).removesuffix("s") for term, *_ in TERMS} | NOT_TERMS
    for heading, text in sections(number).items():
        if heading[:1].isdigit():
            for bold in re.findall(r"\*\*([A-Za-z-]+(?:\s[a-z-]+)?)\*\*", text):
                assert plain(bold).removesuffix("s") in known, bold
