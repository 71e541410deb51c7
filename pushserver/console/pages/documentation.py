"""Documentation inside of the console: the pages of `docs/` of this version of the server, and a search of them."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from posixpath import normpath
from typing import NamedTuple

from django.conf import settings
from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import slugify
from django.views.decorators.http import require_safe
from markdown_it import MarkdownIt
from markdown_it.token import Token

from pushserver.console.parts import parts

FOLDER = Path(settings.BASE_DIR) / "docs"
DECISIONS = "decisions"
INSTALLATION = "installation"
MONITORING = "monitoring"
RUNBOOKS = "runbooks"
# Pages at the top of the list. The others follow by name.
FIRST = (
    "README",
    "console",
    "delivery",
    "limits",
    *(part.name for part in parts()),
    "canary",
    "reports",
    "metrics",
    f"{MONITORING}/README",
    "security",
    "backup",
    "api",
)
_PAGE = re.compile(rf"(({DECISIONS}|{INSTALLATION}|{MONITORING}|{RUNBOOKS})/)?[A-Za-z0-9-]+")
_ELSEWHERE = re.compile(r"[a-z]+:|/")
_HEADING = re.compile(r"#+ (.+)")
_SETTING = re.compile(r"\| `([A-Z][A-Z_0-9]+)` \|")
# A line of the index: a question and the link to its answer.
_QUESTION = re.compile(r"\* ([^…\[\n]+\?) \[[^\]]+\]\(([^)]+)\)")
_READERS = re.compile(r"^For [^:.]+: ")
_MARKUP = re.compile(r"[`*]|\[([^\]]+)\]\([^)]+\)")
MAX_FOUND = 20


class Page(NamedTuple):
    """A page of the documentation: its name in addresses, its heading, and its HTML without the heading.

    The heading of a runbook is the sentence that its alert says; ``alert`` is the name of the alert or indicator.
    ``about`` is the first sentence of any other page, without its readers.
    """

    name: str
    title: str
    html: SafeString
    alert: str = ""
    about: str = ""


class Passage(NamedTuple):
    """A part of the documentation that a search can find: a section, a question of the index, or a setting."""

    kind: str
    title: str
    url: str
    text: str  # in lower case


@require_safe
def show_documentation(request: HttpRequest, name: str = "") -> HttpResponse:
    """Show one page, or the list of all."""
    page = read_page(name) if name else None
    if name and page is None:
        raise Http404
    context = {"title": page.title if page else "Documentation", "page": page, "contents": contents()}
    return TemplateResponse(request, "console/documentation.html", {**admin.site.each_context(request), **context})


@lru_cache
def contents() -> list[tuple[str, list[Page]]]:
    """Return the pages by section: the server, its installation, the runbooks, and the decisions."""
    names = {file.stem for file in FOLDER.glob("*.md")} | set(_names(MONITORING))
    sections = {
        "The server": [name for name in FIRST if name in names] + sorted(names - set(FIRST)),
        "Installation": _names(INSTALLATION),
        "Runbooks": _names(RUNBOOKS),
        "Decisions": _names(DECISIONS),
    }
    return [(title, [page for name in names if (page := read_page(name))]) for title, names in sections.items()]


def _names(folder: str) -> list[str]:
    return sorted(f"{folder}/{file.stem}" for file in (FOLDER / folder).glob("*.md"))


@lru_cache
def read_page(name: str) -> Page | None:
    """Return a page, or None if there is none. The name comes from a URL, so it is checked."""
    file = FOLDER / f"{name}.md"
    if not _PAGE.fullmatch(name) or not file.is_file():
        return None
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = renderer.parse(_source(name))
    title = tokens[1].content if tokens and tokens[0].type == "heading_open" else name
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        _prepare(token, following, name)
    html = renderer.renderer.render(tokens[3:], renderer.options, {})
    alert = name.rpartition("/")[2] if name.startswith(RUNBOOKS) else ""
    about = "" if alert or name.startswith(DECISIONS) else _about(name)
    return Page(name, title.replace("`", ""), mark_safe(html), alert, about)  # noqa: S308 - from our own files, without their HTML


def _about(name: str) -> str:
    """Return the first sentence below the heading of a page, as plain text, without the readers that it is for."""
    paragraph = " ".join(_source(name).split("\n\n")[1:2]).replace("\n", " ")
    sentence = re.split(r"(?<=[.?!]) ", _READERS.sub("", paragraph))[0]
    return _MARKUP.sub(r"\1", sentence).strip()


def _source(name: str) -> str:
    file = FOLDER / f"{name}.md"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _prepare(token: Token, following: Token | None, name: str) -> None:
    if token.type == "heading_open" and following:
        token.attrSet("id", slugify(following.content))
    for child in token.children or []:
        if child.type == "link_open":
            child.attrSet("href", _address(str(child.attrGet("href")), name))


def found_passages(words: Sequence[str]) -> list[Passage]:
    """Return the passages with all these words, which are in lower case. Those with most in the title come first."""
    found = [passage for passage in _passages() if all(word in passage.text for word in words)]
    return sorted(found, key=lambda passage: -sum(word in passage.title.lower() for word in words))[:MAX_FOUND]


@lru_cache
def _passages() -> list[Passage]:
    """Return all passages, as they stand in the files. Of the index these are its questions."""
    pages = [page for _, section in contents() for page in section if page.name != "README"]
    questions = [
        Passage("question", question, url, question.lower())
        for question, target in _QUESTION.findall(_source("README"))
        if not (url := _address(target, "README")).endswith(reverse("documentation_list"))
    ]
    return [*questions, *(passage for page in pages for passage in _passages_of(page))]


def _passages_of(page: Page) -> Iterator[Passage]:
    """Yield the sections of a page, each with its heading, and each row about a setting."""
    kind = "runbook" if page.alert else "document"
    address = reverse("documentation", args=[page.name])
    url, title, is_code = address, f"{page.title} ({page.alert})" if page.alert else page.title, False
    lines = [title]
    for line in _source(page.name).partition("\n")[2].splitlines():
        is_code ^= line.startswith("```")
        setting = _SETTING.match(line)
        if setting:
            yield Passage("setting", setting[1], url, line.lower())
        elif not is_code and (heading := _HEADING.match(line)):
            yield Passage(kind, title, url, "\n".join(lines).lower())
            title, url = f"{page.title}: {heading[1].replace('`', '')}", f"{address}#{slugify(heading[1])}"
            lines = [title]
        else:
            lines.append(line)
    yield Passage(kind, title, url, "\n".join(lines).lower())


def _address(target: str, name: str) -> str:
    """Return the URL of a link inside of the console. A link to a file that is no page leads to the list of pages."""
    path, _, anchor = target.partition("#")
    anchor = f"#{anchor}" if anchor else ""
    if not path or _ELSEWHERE.match(path):
        return target
    there = normpath(f"{name.rpartition('/')[0]}/{path}").strip("/")
    known = there.removesuffix(".md")
    is_page = there.endswith(".md") and (FOLDER / there).is_file() and _PAGE.fullmatch(known)
    return reverse("documentation", args=[known]) + anchor if is_page else reverse("documentation_list")
