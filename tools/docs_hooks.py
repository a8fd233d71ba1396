"""Hooks of mkdocs: links of pages work both in the repository and on the site.

Pages of docs/ link to files outside it: ../../examples/login.py, ../../ARCHITECTURE.md. The site has these below
repository/, at the same paths: Markdown as a page, any other file as a page that shows it, a folder as a list of its
files. Only linked files and `ALWAYS` are there. A link that leads nowhere is left as it is, so the strict build fails.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#\s:]+)(?P<after>(?:#[^)]*)?\))")
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.DOTALL | re.MULTILINE)
LANGUAGES = {"": "text", ".conf": "nginx", ".cfg": "text", ".yml": "yaml"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each file outside docs/ that a page links to, and for those that these link to."""
    linked = {path for path in ALWAYS if (ROOT / path).is_file()}
    for file in files.documentation_pages():
        linked |= set(links_outside(f"docs/{file.src_uri}", file.content_string))
    seen: set[str] = set()
    while new := linked - seen:
        seen |= new
        for path in sorted(new):
            text = page_text(path)
            files.append(generated(path, text, config))
            if path.endswith(".md") or (ROOT / path).is_dir():
                linked |= set(links_outside(path if path.endswith(".md") else f"{path}/index.md", text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links lead to pages of the site that lead to files of the repository."""
    here = repository_path(page.file.src_uri)

    def on_site(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link["target"]))
        target = site_path(path)
        if target is None:
            return link[0]
        return link["before"] + posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".") + link["after"]

    return "".join(text if is_code else LINK.sub(on_site, text) for text, is_code in parts(markdown))


def parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a page, and whether each is a block of code."""
    end = 0
    for fence in FENCE.finditer(markdown):
        yield markdown[end : fence.start()], False
        yield fence[0], True
        end = fence.end()
    yield markdown[end:], False


def links_outside(here: str, markdown: str) -> Iterator[str]:
    """Yield the paths of the files outside docs/ that a page of the repository links to."""
    for text, is_code in parts(markdown):
        for link in () if is_code else LINK.finditer(text):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link["target"]))
            if not path.startswith(("docs/", "..", "/")) and (ROOT / path).exists():
                yield path


def repository_path(src_uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    outside = src_uri.removeprefix("repository/")
    return f"docs/{src_uri}" if outside == src_uri else outside


def site_path(path: str) -> str | None:
    """Return the path on the site, below docs/, of a file of the repository; None if there is no such file."""
    if path.startswith("..") or not (ROOT / path).exists():
        return None
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"repository/{path}/index.md"
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def page_text(path: str) -> str:
    """Return the Markdown of the page that shows a file or folder outside docs/."""
    place = ROOT / path
    if path.endswith(".md"):
        return place.read_text(encoding="utf-8")
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n"
    if place.is_dir():
        return head + "".join(f"- [{file.name}]({file.name})\n" for file in sorted(place.iterdir()) if file.is_file())
    language = LANGUAGES.get(place.suffix, place.suffix.removeprefix("."))
    return f"{head}~~~~~~{language}\n{place.read_text(encoding='utf-8').rstrip()}\n~~~~~~\n"


def generated(path: str, text: str, config: MkDocsConfig) -> File:
    """Return the page of a file outside docs/. Those of `ALWAYS` are in the navigation."""
    src_uri: Any = site_path(path)
    inclusion = InclusionLevel.INCLUDED if path in ALWAYS else InclusionLevel.NOT_IN_NAV
    return File.generated(config, src_uri, content=text, inclusion=inclusion)
