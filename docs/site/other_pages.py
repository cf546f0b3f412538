"""Lets the site show documents that lie outside `docs/`.

MkDocs knows only the files of one folder. CONTRIBUTING.md, the changelog and the results stay where they are,
so they join the site under their paths in the repository, and the links between them and `docs/` are turned
accordingly. A link to a file that is no page, such as a config, becomes the path of that file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(f"benchmarks/{file.name}" for file in ROOT.glob("benchmarks/*.md")),
)
"""Documents outside `docs/`; their places on the site are the same."""
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_FENCED = re.compile(r"(^ *```.*?^ *```)", re.M | re.S)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the documents outside `docs/`."""
    for place in OUTSIDE:
        files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links that are right in the repository into links that are right on the site."""
    parts = _FENCED.split(markdown)
    parts[::2] = [_turn_links(part, page.file.src_uri, files) for part in parts[::2]]
    return "".join(parts)


def _turn_links(text: str, place: str, files: Files) -> str:
    folder = posixpath.dirname(place if place in OUTSIDE else f"docs/{place}")

    def turn(link: re.Match[str]) -> str:
        words, target, anchor = link[1], link[2], link[3] or ""
        file = posixpath.normpath(posixpath.join(folder, target))
        there = file.removeprefix("docs/")
        if files.get_file_from_path(there):
            return f"[{words}]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{anchor})"
        return f"{words} (`{file}`)" if (ROOT / file).exists() else link[0]

    return _LINK.sub(turn, text)
