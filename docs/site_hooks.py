"""Hooks of mkdocs, by which it knows these pages; `mkdocs.yml` names this file.

- Pages and programs that lie elsewhere in the repository, such as README.md, become pages of the
  site by the links that lead to them, under their path.
- `folder/*` in `nav` is each page of a folder that is not named beside it.
- The lines that put examples on a device that is always there are for the tests, not for readers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
LINK: Final = re.compile(r"(\]\()([^)\s#:]+)(?=[)#])")
"""The target of a link within the repository, without its anchor."""
OF_TESTS: Final = re.compile(
    r"^```python\n(?:>>> (?!place).*\n)*(>>> place.*\n)+\n*```\n|^>>> place.*\n", re.M
)


def address(path: Path) -> str:
    """The address of a page's source within the site."""
    own = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT)
    name = own.as_posix().replace("README.md", "readme.md")
    return name if name.endswith(".md") else f"{name}.md"


def source(uri: str) -> Path:
    """The file that a page is made of."""
    inside = DOCS / uri
    outside = ROOT / uri.replace("readme.md", "README.md").replace(".py.md", ".py")
    return inside if inside.is_file() else outside


def content(path: Path) -> str:
    """The page of a file: Markdown as it is, a program under its name."""
    text = path.read_text("utf-8")
    return (
        text
        if path.suffix == ".md"
        else f"---\nhide: [toc]\n---\n# {path.name}\n\n````python\n{text}````\n"
    )


def newest(path: Path) -> Path:
    """The last page of a folder of pages that are named by their date; any other path itself."""
    return max(path.glob("*.md"), default=path) if path.is_dir() else path


def linked(path: Path) -> Iterator[Path]:
    """Pages and programs outside of docs/ that a page links to."""
    if path.suffix != ".md":
        return
    for _, target in LINK.findall(path.read_text("utf-8")):
        found = newest(Path(os.path.normpath(path.parent / target)))
        if found.suffix in {".md", ".py"} and found.is_file() and not found.is_relative_to(DOCS):
            yield found


def outside() -> list[Path]:
    """All pages outside of docs/ that links lead to, over any number of steps."""
    waiting, found = [*DOCS.rglob("*.md")], dict[Path, None]()
    while waiting:
        for path in linked(waiting.pop()):
            if path not in found:
                found[path] = None
                waiting.append(path)
    return sorted(found)


def on_config(config: Any) -> Any:
    """Expand `folder/*` in `nav`."""
    named = {*words(config.nav)}
    pages = [address(p) for p in sorted(DOCS.rglob("*.md"))] + [address(p) for p in outside()]
    left = [page for page in pages if page not in named]
    config.nav = expanded(config.nav, lambda stem: [p for p in left if Path(p).match(stem)])
    return config


def words(nav: Any) -> Iterator[str]:
    """The pages that a part of `nav` names."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from words(item)


def expanded(nav: Any, pages: Callable[[str], list[str]]) -> Any:
    """A part of `nav` with the pages that `folder/*` stands for."""
    if isinstance(nav, dict):
        return {title: expanded(item, pages) for title, item in nav.items()}
    if not isinstance(nav, list):
        return nav
    return [
        found
        for item in nav
        for found in (
            pages(item) if isinstance(item, str) and "*" in item else [expanded(item, pages)]
        )
    ]


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside of docs/."""
    kind = type(next(iter(files)))
    for path in outside():
        files.append(kind.generated(config, address(path), content=content(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page with links to other pages of the site, without what is for the tests alone."""
    path = source(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        found = newest(Path(os.path.normpath(path.parent / match[2])))
        if not found.is_file():
            return match[0]
        is_page = found.suffix in {".md", ".py"}
        target = address(found) if is_page else os.path.relpath(found, DOCS)
        return match[1] + os.path.relpath(target, Path(page.file.src_uri).parent)

    return LINK.sub(link, OF_TESTS.sub("", markdown))
