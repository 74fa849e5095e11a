"""The course as static pages, made from the committed notebooks as they stand. Nothing is executed.

html     site/*.html: a page for each notebook, an index, and the source files that they link to
slides   site/slides/*.html: each notebook as slides for a class

With --no-solutions after it, for a class: hints and answers stay, solutions and what is for teachers go.

Every file is complete in itself: style, pictures and formulas (as MathML) are inside, and nothing is
fetched when it is opened, from a disk or from a server. The same notebooks give the same bytes.

The slides have a short script of their own (pages/slides.js). nbconvert's slides fetch reveal.js from
elsewhere each time they are shown; brought along, it would be one more library to keep up to date, for
effects that a lesson does not need. Ours are plain sections: a slide that is too tall scrolls, everything
prints, a phone shows them, too, and without script all slides stand on one page.
"""

from __future__ import annotations

import html
import posixpath
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import nbformat
import student
from latex2mathml.converter import convert
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from slides import UPRIGHT, on_slides
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
SEEN = ["text/html", "text/markdown", "image/png", "text/plain"]  # the best of an output, for a page at rest


@dataclass
class Site:
    """Where everything is.

    home     the repository's address, where source files are linked to; "" if there is none
    sources  files of the repository that pages link to; without a home each gets a page of its own
    solutions  are the solutions of the exercises shown?
    """

    folder: Path
    home: str = ""
    sources: set[str] = field(default_factory=set)
    solutions: bool = True

    def page_of(self, file: str) -> str:
        """The address of a file of the repository: its page, seen from the site's folder, or its home."""
        if file == "README.md":
            return "index.html"
        if file.startswith("slides/"):
            return file
        if file.endswith(".ipynb"):
            return Path(file).with_suffix(".html").name
        if self.home:
            return f"{self.home}/blob/main/{file}"
        self.sources.add(file)
        return f"{file}.html"

    def address(self, link: str, source: str, page: str) -> str:
        """A link in `source`, a file of the repository, as it must read on `page`, a file of the site."""
        path, mark, anchor = link.partition("#")
        if not path or re.match(r"\w+:", link):
            return link
        target = self.page_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), path)))
        if not target.startswith("https:"):
            target = posixpath.relpath(target, posixpath.dirname(page))
        return target + mark + anchor


# -- Markdown -----------------------------------------------------------------------------


class Renderer(IPythonRenderer):
    """Markdown as HTML, with Jupyter's names of headings, formulas as MathML, and links within the site."""

    def __init__(self, site: Site, source: str, page: str) -> None:
        super().__init__(escape=False, embed_images=True, path=str((ROOT / source).parent))
        self.place = site, source, page

    def block_html(self, html: str) -> str:
        """As it stands: embedding pictures would close a tag that closes in a later block."""
        return html + "\n"

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        name = html.unescape(re.sub(r"<[^>]+>", "", text)).replace(" ", "-")
        if self.place[1].startswith("docs/"):
            name = name.lower()  # as GitHub names them, where these are read
        return f'<h{level} id="{html.escape(name)}">{text}</h{level}>\n'

    def inline_math(self, body: str) -> str:
        """A chain of equations may break before each "=": browsers do not break a formula."""
        steps = re.split(r"\s+(?=(?:=|\\approx)\s)", body)
        whole = all(step.count("{") == step.count("}") for step in steps) and "\\begin" not in body
        first, *others = steps if whole else [body]
        return "<wbr>".join([mathml(first), *(mathml("{}" + step) for step in others)])

    def block_math(self, body: str) -> str:
        return f'<div class="formula">{mathml(body, "block")}</div>'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        site, source, page = self.place
        return super().link(text, site.address(url, source, page), title)

    def table(self, text: str) -> str:
        return f'<div class="scroll"><table>\n{text}</table></div>\n'


def mathml(formula: str, display: str = "inline") -> str:
    """A formula of LaTeX as MathML, which browsers draw themselves. What is not understood is an error."""
    formula = re.sub(r"(?<=\{)aligned(?=\})", "split", formula)  # the one of the two names that is known
    formula = re.sub(r"(\w) (\\log)", r"\1\\,\2", formula)  # MathML knows no space before a function
    found = convert(formula, display=display)
    found = found.replace("<mo>&#x022A4;</mo>", "<mi>&#x022A4;</mi>")  # "transposed", which wants no space
    if re.search(r">[^<]*[\\&](?!#)[^<]*<", found):
        raise ValueError(f"no MathML for the formula {formula!r}")
    return found


def markdown(text: str, renderer: Renderer) -> str:
    """Markdown as HTML. What is folded is Markdown, too, also where no empty line says so."""
    text = re.sub(r"(</summary>)(?=\S)", r"\1\n\n", text)
    text = re.sub(r"(?<=\S)(</details>)", r"\n\n\1\n", text)
    found = MarkdownWithMath(renderer=renderer).render(text)
    return re.sub(r'<p>(<div class="formula">.*?</div>)</p>', r"\1", found, flags=re.DOTALL)


# -- a notebook as a file -----------------------------------------------------------------


class Exporter(HTMLExporter):
    """nbconvert with the course's templates (.ci/pages) and its Markdown."""

    renderer: Renderer  # of the file that is being written

    def __init__(self, template: str) -> None:
        super().__init__(
            config=Config(NbConvertBase={"display_data_priority": SEEN}),
            template_name="pages",
            template_file=template,
            extra_template_basedirs=[str(ROOT / ".ci")],
        )

    def default_filters(self) -> Iterator[tuple[str, Any]]:
        yield from super().default_filters()
        yield "is_prose", is_prose

    @jinja2.pass_context
    def markdown2html(self, context: jinja2.runtime.Context, source: str) -> str:
        return markdown(source, self.renderer)


def is_prose(printed: str) -> bool:
    """May the lines of what was printed be broken? Those of a table and of a matrix may not."""
    return bool(re.search(r"(?m)^.{79}", printed)) or not re.search(r"\S {2,}\S|\[\[", printed)


@cache
def exporter(template: str) -> Exporter:
    """One for each template, which need not be read again for every file."""
    return Exporter(template)


def write(site: Site, source: str, page: str, notebook: nbformat.NotebookNode, **resources: Any) -> None:
    """Write one file of the site, made from `source` with the template page.html.j2 or slides.html.j2."""
    maker = exporter("slides.html.j2" if page.startswith("slides/") else "page.html.j2")
    maker.renderer = Renderer(site, source, page)
    text, _ = maker.from_notebook_node(notebook, resources)
    (site.folder / page).parent.mkdir(parents=True, exist_ok=True)
    (site.folder / page).write_text(text, encoding="utf-8", newline="\n")


def notebooks(solutions: bool = True) -> dict[str, nbformat.NotebookNode]:
    """The committed notebooks by their place in the repository, in the order of the course."""
    paths = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    course = {path.relative_to(ROOT).as_posix(): nbformat.read(path, as_version=4) for path in paths}
    for cell in (cell for notebook in course.values() for cell in notebook.cells if not solutions):
        if cell.cell_type == "markdown":
            cell.source = student.FOLDED.sub(lambda found: student.kept(found, "", hints=True), cell.source)
    return course


def title(notebook: nbformat.NotebookNode) -> str:
    return re.search(r"(?m)^# (.+)$", notebook.cells[0].source)[1]


# -- pages --------------------------------------------------------------------------------


def write_pages(site: Site) -> None:
    """A page for each notebook, and one for each source file that they link to."""
    course = notebooks(site.solutions)
    places = [{"href": Path(f).with_suffix(".html").name, "title": title(n)} for f, n in course.items()]
    for number, (file, notebook) in enumerate(course.items()):
        write(
            site,
            file,
            places[number]["href"],
            notebook,
            title=places[number]["title"],
            index={"href": "index.html", "title": "the course"},
            previous=places[number - 1] if number else None,
            next=places[number + 1] if number + 1 < len(places) else None,
            how_to_run="index.html#Start",
        )
    write_index(site)  # which links to files, too
    written: set[str] = set()
    while missing := sorted(site.sources - written):
        for file in missing:
            write_source(site, file)
        written.update(missing)


def write_source(site: Site, file: str) -> None:
    """The page of a file of the repository: a text as a text, Python as Python."""
    text = (ROOT / file).read_text(encoding="utf-8").rstrip()
    if file.endswith(".md"):
        shown = new_notebook(cells=[new_markdown_cell(text)])
    else:
        shown = new_notebook(cells=[new_markdown_cell(f"# {file}"), new_code_cell(text)])
    shown.metadata.language_info = {"name": "python"}
    index = {"href": posixpath.relpath("index.html", posixpath.dirname(file)), "title": "the course"}
    write(site, file, f"{file}.html", shown, title=title(shown), index=index)


def write_index(site: Site) -> None:
    """The front page, out of the README: what the course is, its path, how to run it; and the slides."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    opening = re.sub(r"<!-- home -->.*?<!-- /home -->", "", readme.partition("\n## ")[0], flags=re.DOTALL)
    path = section(readme, "The path").split("\n\n")
    parts = [opening, "\n\n".join(path[:2])]
    if made := sorted((site.folder / "slides").glob("*.html")):
        course = {Path(file).stem: title(notebook) for file, notebook in notebooks().items()}
        rows = "\n".join(f"- [{course[deck.stem]}](slides/{deck.name})" for deck in made)
        parts.append(f"## Slides\n\nFor a class, moved on by the arrow keys:\n\n{rows}")
    beside = "[The course's terms](docs/glossary.md) in English and Chinese."
    teachers = " For teachers: [what to ask, and how to run it for a class](docs/teaching.md)."
    parts += [beside + teachers * site.solutions, section(readme, "Start")]
    cells = [new_markdown_cell(part) for part in parts]
    write(site, "README.md", "index.html", new_notebook(cells=cells), title=title(new_notebook(cells=cells)))


def section(readme: str, name: str) -> str:
    """A section of the README, with its heading."""
    return re.search(rf"(?ms)^## {name}$.*?(?=^## |\Z)", readme)[0].strip()


# -- slides -------------------------------------------------------------------------------


def write_slides(site: Site) -> None:
    for file, notebook in notebooks(site.solutions).items():
        name = Path(file).stem
        notebook.cells = list(on_slides(notebook.cells))
        write(
            site,
            file,
            f"slides/{name}.html",
            notebook,
            title=title(notebook),
            whole=f"../{name}.html",
            upright=UPRIGHT,
            how_to_run="../index.html#Start",
        )


def main(command: str, folder: Path, solutions: bool = True) -> None:
    """Make the pages or the slides; what the other command made stays."""
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["course"]["home"]
    site = Site(folder, home, solutions=solutions)
    if command == "html":
        for old in folder.glob("*"):
            if old.name != "slides":
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        write_pages(site)
    elif command == "slides":
        shutil.rmtree(folder / "slides", ignore_errors=True)
        write_slides(site)
    else:
        sys.exit(__doc__)
    write_index(site)


if __name__ == "__main__":
    command, *options = sys.argv[1:] or [""]
    main(command if options in ([], ["--no-solutions"]) else "", ROOT / "site", solutions=not options)
