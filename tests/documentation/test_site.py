"""The built site: its links and anchors lead somewhere, it loads nothing from other hosts, its search works offline,
and its API pages have every public name."""

import ast
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import expect

from tests.dashboard.conftest import OpenPage
from tests.documentation.pages import ROOT

PACKAGES = sorted((ROOT / "src").glob("ratebound/**/__init__.py"))
TAG = re.compile(r"<(a|area|audio|embed|form|iframe|img|link|object|script|source|video)\b([^>]*)>")
ADDRESS = re.compile(r"""\b(href|src|srcset|data|action)=(?:"([^"]*)"|'([^']*)'|([^\s>]+))""")


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def anchors(path: Path) -> frozenset[str]:
    found = re.findall(r"<[^>]*?\b(?:id|name)=(?:\"([^\"]*)\"|([^\s>\"]+))", text_of(path))
    return frozenset(unescape(quoted or bare) for quoted, bare in found)


def addresses(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (tag, address) for everything that a page links to or loads."""
    for tag, attributes in TAG.findall(text_of(path)):
        for _, *values in ADDRESS.findall(attributes):
            yield tag, unescape("".join(values))


def pages(site: Path) -> list[Path]:
    found = sorted(site.rglob("*.html"))
    assert len(found) > 50
    return found


def broken(site: Path, page: Path, address: str) -> bool:
    """Return True if an address within the site leads to no file, or to no anchor of one."""
    parts = urlsplit(address)
    base = "" if parts.path.startswith("/") else posixpath.dirname(page.relative_to(site).as_posix())
    target = site / posixpath.normpath(posixpath.join(base, unquote(parts.path).lstrip("/"))) if parts.path else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_file() or not target.resolve().is_relative_to(site.resolve()):
        return True
    anchor = unquote(parts.fragment)
    return bool(anchor) and target.suffix == ".html" and anchor not in anchors(target) and anchor != "__"


def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path) -> None:
    wrong = {
        f"{page.relative_to(site)}: {address}"
        for page in pages(site)
        for _, address in addresses(page)
        if not re.match(r"(https?|mailto|data|javascript):", address) and broken(site, page, address)
    }
    assert wrong == set()


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loaded = {
        f"{page.relative_to(site)}: <{tag}> {address}"
        for page in pages(site)
        for tag, address in addresses(page)
        if tag not in ("a", "area") and re.match(r"(\w+:)?//", address)
    }
    styles = {
        f"{path.relative_to(site)}: {address}"
        for path in (*site.rglob("*.css"), *pages(site))
        for address in re.findall(r"(?:url\(\s*|@import\s+)[\"']?((?:https?:)?//[^\"')]+)", text_of(path))
    }
    diagrams = {str(page.relative_to(site)) for page in pages(site) if 'class="mermaid"' in text_of(page)}
    assert (loaded, styles, diagrams) == (set(), set(), set())  # the theme loads what draws diagrams from another host


def test_links_to_other_hosts_are_encrypted(site: Path) -> None:
    plain = {
        f"{page.relative_to(site)}: {address}"
        for page in pages(site)
        for _, address in addresses(page)
        if address.startswith("http://")
    }
    assert plain == set()


def public_names(package: Path) -> list[str]:
    """Return the names in `__all__` of a package, with the package's name."""
    module = ".".join(package.parent.relative_to(ROOT / "src").parts)
    for statement in ast.parse(package.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return [f"{module}.{name}" for name in ast.literal_eval(statement.value)]
    return []


def test_every_public_name_is_on_a_page_of_the_api(site: Path) -> None:
    documented = frozenset().union(*(anchors(page) for page in (site / "reference" / "api").glob("*.html")))
    expected = {name for package in PACKAGES for name in public_names(package)}
    assert len(expected) > 100
    in_namesake = {name for name in expected if f"{name}.{name.rpartition('.')[2]}" in documented}  # also a module
    assert expected - documented - in_namesake == set()


def test_the_search_works_without_a_server(site: Path, open_page: OpenPage) -> None:
    page = open_page((site / "index.html").as_uri())
    page.locator(".md-search__input").press_sequentially("memcached")
    result = page.locator(".md-search-result__link").first
    expect(result).to_contain_text("Memcached")
    result.click()
    expect(page.locator("article")).to_contain_text("memcached://")


@pytest.mark.parametrize("system", ["light", "dark"])
def test_pictures_have_the_colours_that_the_reader_switched_to(site: Path, open_page: OpenPage, system: str) -> None:
    page = open_page((site / "explanation" / "algorithms.html").as_uri(), color_scheme=system)
    picture = page.locator("img[src*='token-bucket']")

    def corner() -> bytes:
        picture.scroll_into_view_if_needed()
        box = picture.bounding_box()
        assert box is not None
        return page.screenshot(clip={"x": box["x"] + 12, "y": box["y"] + 12, "width": 60, "height": 20})

    before = corner()
    page.get_by_title(f"Switch to {'dark' if system == 'light' else 'light'}").click()
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate" if system == "light" else "default")
    after = corner()
    page.get_by_title(f"Switch to {system}").click()
    assert after != before
    assert corner() == before
