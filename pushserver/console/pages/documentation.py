"""Documentation inside of the console: the pages of `docs/` of this version of the server."""

import re
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


class Page(NamedTuple):
    """A page of the documentation: its name in addresses, its heading, and its HTML without the heading."""

    name: str
    title: str
    html: SafeString


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
    """Return the pages by part: the server, its installation, the runbooks, and the decisions."""
    names = {file.stem for file in FOLDER.glob("*.md")} | set(_names(MONITORING))
    parts = {
        "The server": [name for name in FIRST if name in names] + sorted(names - set(FIRST)),
        "Installation": _names(INSTALLATION),
        "Runbooks": _names(RUNBOOKS),
        "Decisions": _names(DECISIONS),
    }
    return [(part, [page for name in names if (page := read_page(name))]) for part, names in parts.items()]


def _names(folder: str) -> list[str]:
    return sorted(f"{folder}/{file.stem}" for file in (FOLDER / folder).glob("*.md"))


@lru_cache
def read_page(name: str) -> Page | None:
    """Return a page, or None if there is none. The name comes from a URL, so it is checked."""
    file = FOLDER / f"{name}.md"
    if not _PAGE.fullmatch(name) or not file.is_file():
        return None
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = renderer.parse(file.read_text(encoding="utf-8"))
    title = tokens[1].content if tokens and tokens[0].type == "heading_open" else name
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        _prepare(token, following, name)
    html = renderer.renderer.render(tokens[3:], renderer.options, {})
    return Page(name, title.replace("`", ""), mark_safe(html))  # noqa: S308 - from our own files, without their HTML


def _prepare(token: Token, following: Token | None, name: str) -> None:
    if token.type == "heading_open" and following:
        token.attrSet("id", slugify(following.content))
    for child in token.children or []:
        if child.type == "link_open":
            child.attrSet("href", _address(str(child.attrGet("href")), name))


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
