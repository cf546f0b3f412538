"""The documentation site: its first pages are true, every document is in it, and it needs no network."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from docs.site.screenshots import launch
from playwright.sync_api import expect, sync_playwright
from tests.federation import setup
from tests.made_once import made_once
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.market import payments as tokens
from ipfl.market.bank import TokenAccounts, TokenManager
from ipfl.market.seating import Seating
from ipfl.market.settlement import Served, SettlementRule, settle
from ipfl.methods.ipfl_plus.importance import choose_bids, relative_importance
from ipfl.methods.ipfl_plus.payment import Payment

ROOT = Path(__file__).parent.parent
SMALLER = ("task.clients=6", "task.samples=20", "task.model=softmax", "rounds=1")
SMALL = ["--workers", "0", *(word for setting in SMALLER for word in ("--set", setting))]


def text(name):
    return (ROOT / name).read_text()


class TestStart:
    START = text("docs/start.md")

    @pytest.mark.slow
    def test_commands_run_and_the_columns_are_explained(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        compare, show = re.findall(r"^\$ ipfl (.*)$", self.START, re.M)
        compared = CliRunner().invoke(app, [*shlex.split(compare), *SMALL])
        assert compared.exit_code == 0, compared.output
        (shown,) = re.findall(r"^ method .*$", self.START, re.M)
        (printed,) = re.findall(r"^ method .*$", compared.output, re.M)
        assert printed.split() == shown.split()
        explained = ", ".join(re.findall(r"^\| ([\w, -]+) \| \w", self.START, re.M)).split(", ")
        columns = shown.replace(" outs ", " opt-outs ").split()  # this word has two lines
        assert set(explained) >= set(columns) - {"method", "fedavg"}
        for plot in re.findall(r"`(\w+\.png)`", self.START):
            assert (tmp_path / "runs/first" / plot).exists()
        account = CliRunner().invoke(app, shlex.split(show))
        assert account.exit_code == 0, account.output
        assert "opening balance" in account.output

    def test_own_data_in_fifteen_lines(self, capsys):
        (example,) = re.findall(r"```python\n(.*?)```", self.START, re.S)
        assert len([line for line in example.splitlines() if line]) <= 15
        exec(example.replace("rounds=10", "rounds=2"), {})
        *towns, predicted = capsys.readouterr().out.splitlines()[-7:]
        assert [re.fullmatch(r"(\w+) \d+%", line)[1] for line in towns] == [
            *("Basel", "Bern", "Chur", "Davos", "Sion", "Thun")
        ]
        assert re.fullmatch(r"\[('(high|low)'(, )?){3}\]", predicted)


class TestConcepts:
    """The round of docs/concepts.md, played with the code of the market. It is derived there."""

    PAGE = text("docs/concepts.md")
    NAMES = ("Anna", "Ben", "Cleo", "Dan")
    MEANS = np.array([0.6, 0.4])
    PRICE, ETA, GAMMA, SUBSIDY = 100, 0.1, 0.1, 200
    SEATS = np.array([[1, 0], [0, 0], [0, 1], [1, 0]], bool)

    def table(self, heading):
        """Rows of the four clients in the section's tables, without their names."""
        (part,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", self.PAGE, re.M | re.S)
        rows = re.findall(rf"^\| ({'|'.join(self.NAMES)}) \|(.*)\|$", part, re.M)
        return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}

    def scores(self):
        return np.array(
            [[float(cell) for cell in row[:2]] for row in self.table("1. What suits me?").values()]
        )

    def play(self, delivered=SEATS, psi=None):
        """The round from the scores on; who delivers what differs in the last table of the page."""
        psi = {0: [0.3, 0.1], 1: [0.2]} if psi is None else psi
        ranks = np.full((4, 2), -1)
        for client, scores in enumerate(self.scores()):
            for rank, cluster in enumerate(choose_bids(relative_importance(scores, self.MEANS))):
                ranks[client, cluster] = rank
        manager = TokenManager(TokenAccounts.open(range(4), 2, 10_000), self.PRICE)
        paid = manager.collect_bids(ranks)
        seats = replace(Seating.empty((4, 2)), selected=self.SEATS)
        payments = manager.charge(paid, seats, np.ones(4, bool))
        pools = manager.pool.tolist()
        usual = self.scores()
        usual[[1, 3], 0] = 0.625, 0.75
        rule = SettlementRule("shortfall", self.ETA, self.GAMMA, self.SUBSIDY)
        contributions = {cluster: np.array(values) for cluster, values in psi.items()}
        omega = np.zeros((4, 2), int)
        served = Served(payments, self.SEATS, delivered, contributions, omega, self.scores(), usual)
        shares = settle(manager, rule, served, {})
        return manager, pools, shares

    def test_settings_are_the_defaults(self):
        payment = Payment()
        expected = SettlementRule("shortfall", self.ETA, self.GAMMA, self.SUBSIDY)
        assert payment.price == self.PRICE
        assert payment.settlement_rule == expected
        assert TokenAccounts.of_run(setup(4, config={"rounds": 30}), 2, 100, None).opening == 10_000

    def test_weights_and_bids(self):
        np.testing.assert_allclose(self.scores().mean(axis=0), self.MEANS)
        for row in self.table("1. What suits me?").values():
            scores = np.array([float(cell) for cell in row[:2]])
            np.testing.assert_allclose(scores / self.MEANS, [float(cell) for cell in row[2].split(", ")])
            weights = relative_importance(scores, self.MEANS)
            assert [f"{weight:.2f}" for weight in weights] == row[3:5]
            assert choose_bids(weights) == [int(cell) for cell in row[5].split(", ")]

    def test_payments(self):
        _, pools, _ = self.play()
        said = self.table("2. Who pays").values()
        assert pools == [sum(int(row[cluster] or 0) for row in said) for cluster in (0, 1)]
        assert "| in the pool | {} | {} |".format(*pools) in self.PAGE

    def test_claims(self):
        rows = list(self.table("4. Who gets something back").values())
        score, usual, claim = (np.array([float(row[column]) for row in rows]) for column in (0, 1, 3))
        np.testing.assert_allclose(tokens.shortfalls(score, usual, self.GAMMA), claim)
        _, _, shares = self.play()
        assert shares == pytest.approx({0: 0.04, 1: 0.0})

    def test_accounts_afterwards(self):
        manager, _, _ = self.play()
        earned, back = manager.earned, np.zeros(4, int)
        for row in manager.transfers:
            back[row.client] += row.amount * (row.kind == "reimbursement")
        paid = back + earned - manager.net.sum(axis=1)
        rows = np.array(
            [[int(cell) for cell in row] for row in self.table("The accounts afterwards").values()]
        )
        found = [paid, back, earned, manager.balances]
        assert rows.T.tolist() == [[10_000] * 4, *(column.tolist() for column in found)]
        assert manager.issued == rows[:, -1].sum() == 40_600
        wages = self.table("5. Who earns")
        assert [int("".join(wages[name])) for name in ("Anna", "Cleo", "Dan")] == [459, 400, 229]
        assert earned.tolist() == [459, 0, 400, 229]

    def test_what_if(self):
        nothing = self.SEATS.copy()
        nothing[3, 0] = False
        lost, _, _ = self.play(nothing, {0: [0.3], 1: [0.2]})
        useless, _, _ = self.play(psi={0: [0.3, 0.0], 1: [0.2]})
        for manager in (lost, useless):
            assert manager.earned.tolist() == [288 + 200, 0, 400, 0]


def documents():
    """Every page of docs/, by its place there."""
    return {file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md")}


class TestNavigation:
    PLACES = re.findall(r"^ +- (?:.+: )?([\w/-]+\.md)$", text("mkdocs.yml"), re.M)

    def test_every_document_is_there_once(self):
        assert documents() <= set(self.PLACES)
        assert len(self.PLACES) == len(set(self.PLACES))

    def test_every_place_exists(self):
        for place in self.PLACES:
            assert (ROOT / "docs" / place).exists() or (ROOT / place).exists(), place

    def test_every_name_of_the_api_has_its_entry(self):
        shown = re.findall(
            r"^::: ipfl\.(.+)$", "".join(map(Path.read_text, (ROOT / "docs/api").glob("*.md"))), re.M
        )
        names = {place.split(".")[-1] for place in shown}
        fields = ipfl.RunConfig.model_fields.values()
        sections = {field.default_factory.__name__ for field in fields if field.default_factory}
        assert names == {*ipfl.__all__, *sections} - {"__version__"}


class Links(HTMLParser):
    """What a built page refers to, what it loads, and which anchors it has."""

    def __init__(self, html):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("script", "img", "iframe") and "src" in values:
            self.loaded.append(values["src"])
        elif tag == "link" and values.get("rel") != "canonical":
            self.loaded.append(values["href"])


def build_site(folder):
    """With proxies that lead nowhere: nothing may come from the network."""
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return made_once(tmp_path_factory, "site", build_site)


@pytest.fixture(scope="module")
def pages(site):
    return {file: Links(file.read_text()) for file in site.rglob("*.html") if file.name != "404.html"}


@pytest.mark.slow
class TestBuilt:
    def test_every_document_is_a_page_that_the_search_knows(self, site):
        index = (site / "search/search_index.js").read_text()
        for place in documents():
            page = place.replace(".md", ".html")
            assert (site / page).exists()
            assert f'"location":"{page}' in index

    def test_links_lead_somewhere(self, pages):
        checked = 0
        for page, found in pages.items():
            for link in found.links:
                parts = urlsplit(link)
                if parts.scheme:
                    assert parts.scheme in ("https", "mailto"), link
                    continue
                target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
                assert target.exists(), f"{page.name}: {link}"
                if parts.fragment and target in pages:
                    assert unquote(parts.fragment) in pages[target].anchors | {"__top"}, (
                        f"{page.name}: {link}"
                    )
                checked += 1
        assert checked > 1000

    def test_nothing_is_loaded_from_elsewhere(self, pages):
        for page, found in pages.items():
            for source in found.loaded:
                assert not urlsplit(source).netloc, f"{page.name}: {source}"
                assert (page.parent / urlsplit(source).path).exists(), f"{page.name}: {source}"

    def test_settings_have_their_descriptions(self, site):
        html = (site / "api/settings.html").read_text()
        for section in (ipfl.TrainConfig, ipfl.EvaluateConfig, ipfl.ClientsConfig):
            for name, field in section.model_fields.items():
                assert f'id="{section.__module__}.{section.__name__}.{name}"' in html
                assert " ".join(re.findall(r"\w+", field.description)[:3]) in re.sub(
                    r"\W+", " ", re.sub("<[^>]+>", "", html)
                ), name


def is_given_up(request):
    """Whether a request ended because the browser went to another page meanwhile."""
    return request.failure == "net::ERR_ABORTED"


@pytest.mark.slow
@pytest.mark.waits
def test_search_and_pages_in_a_browser_without_network(site):
    """From the files, as people open them: the search finds a page, and no page complains of anything."""
    problems = []
    with sync_playwright() as playwright, launch(playwright) as browser:
        page = browser.new_context(offline=True).new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.on(
            "requestfailed", lambda request: None if is_given_up(request) else problems.append(request.url)
        )
        page.goto((site / "index.html").as_uri())
        page.get_by_placeholder("Search").first.click()
        page.keyboard.type("escrow")
        found = page.locator(".md-search-result__item a").first
        expect(found).to_be_visible(timeout=30_000)
        found.click()
        expect(page.locator("article")).to_contain_text("escrow", timeout=30_000)
        for name in ("api/run.html", "architecture.html"):
            page.goto((site / name).as_uri())
    assert problems == []
