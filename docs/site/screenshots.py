"""Photographs the console for the documents: `docs/img/console-*.png`.

    ipfl compare --methods ipfl-plus,fedavg,ifca --out runs/pictures/default
    python docs/site/screenshots.py runs/pictures docs/img

Needs Chromium and the extra `dev`. With `--every`, each page is photographed in both widths and colours, to
be looked at. The tests of the console in a browser (`tests/console/test_browser.py`) sign in with the same
functions.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from itertools import product
from pathlib import Path
from typing import Literal, get_args

from PIL import Image
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

PORT = 8765
RUN, OTHERS = "default~ipfl-plus~seed-0", ("default~fedavg~seed-0", "default~ifca~seed-0")
WIDTHS = {"desk": (1280, 800), "phone": (390, 844)}
Colours = Literal["light", "dark"]
PATIENCE = 30_000
"""Milliseconds that a busy machine may take for a page."""
PAGES = {
    "runs": "/",
    "run": f"/runs/{RUN}",
    "client": f"/runs/{RUN}/clients/3",
    "ledger": f"/runs/{RUN}/ledger",
    "compare": "/compare?" + "&".join(f"run={run}" for run in (RUN, *OTHERS)),
}
DOCUMENTED: dict[str, tuple[str, str, Colours, int | None]] = {
    "runs": ("runs", "desk", "light", 520),
    "run": ("run", "desk", "light", 1060),
    "ledger": ("ledger", "desk", "light", 720),
    "compare": ("compare", "desk", "light", 800),
    "client-phone": ("client", "phone", "dark", 1500),
}
"""File → page, width, colours, and how much of the page is shown, in pixels from the top."""


def wait_for(address: str) -> None:
    """Until the console answers."""
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{address}/login")
        except urllib.error.URLError:
            time.sleep(0.2)
        else:
            return
    sys.exit("the console does not answer")


def launch(playwright: Playwright) -> Browser:
    """The system's Chromium, or Playwright's own (`playwright install chromium`)."""
    return playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])


def new_page(browser: Browser, width: str, colour: Colours) -> Page:
    """An empty page of this width and colour scheme, in a context of its own."""
    across, down = WIDTHS[width]
    context = browser.new_context(viewport={"width": across, "height": down}, color_scheme=colour)
    context.set_default_timeout(PATIENCE)
    return context.new_page()


def sign_in(page: Page, address: str, token: str) -> None:
    """Signs in to a console, as whom the token is for."""
    page.goto(f"{address}/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/login" not in url)


def visit(page: Page, address: str) -> None:
    """Opens a page, and waits until its charts are drawn."""
    page.goto(address)
    charts = page.locator("[data-chart]").count()
    expect(page.locator("[data-chart][data-drawn]")).to_have_count(charts, timeout=PATIENCE)


def shoot(page: Page, address: str, name: str, height: int | None, file: Path) -> None:
    """Photographs a page, or the upper part of it, once its charts are drawn."""
    visit(page, address + PAGES[name])
    page.wait_for_timeout(500)
    page.screenshot(path=file, full_page=True)
    if height is not None:
        picture = Image.open(file)
        picture.crop((0, 0, picture.width, min(height, picture.height))).save(file, optimize=True)


def main() -> None:
    """Starts a console, photographs it, ends it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--every", action="store_true", help="every page, in both widths and colours")
    given = parser.parse_args()
    wanted = DOCUMENTED
    if given.every:
        wanted = {"-".join(one): (*one, None) for one in product(PAGES, WIDTHS, get_args(Colours))}
    with tempfile.TemporaryDirectory() as folder:
        token, address = Path(folder) / "token", f"http://127.0.0.1:{PORT}"
        command = [shutil.which("ipfl") or "ipfl", "console", "--runs", str(given.runs), "--port", str(PORT)]
        console = subprocess.Popen([*command, "--auth", "--token-file", str(token)])
        try:
            wait_for(address)
            with sync_playwright() as playwright:
                browser = launch(playwright)
                pages: dict[tuple[str, str], Page] = {}  # signing in is limited to some times a minute
                for file, (name, width, colour, height) in wanted.items():
                    if (width, colour) not in pages:
                        pages[width, colour] = new_page(browser, width, colour)
                        sign_in(pages[width, colour], address, token.read_text().strip())
                    shoot(pages[width, colour], address, name, height, given.out / f"console-{file}.png")
        finally:
            console.terminate()
            console.wait()


if __name__ == "__main__":
    main()
