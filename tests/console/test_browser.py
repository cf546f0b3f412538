"""The console in a real browser: Debian's Chromium, at the width of a desk and of a phone, light and dark.

One browser and one server for all tests. One of them adds rounds to a run.
"""

import json
import re
import shutil
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from docs.site.screenshots import PATIENCE, launch, new_page, sign_in, visit
from playwright.sync_api import expect, sync_playwright
from tests.console.conftest import make_app, open_for
from tests.ledger.example_runs import LINE

from ipfl.console.pages import percent, points, tokens
from ipfl.ledger.store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.waits]
AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text()
IPFL, FEDAVG = "both~ipfl-plus~seed-0", "both~fedavg~seed-0"


@pytest.fixture(scope="module")
def folder(runs_folder, tmp_path_factory):
    """Runs of our own: a run is added to them."""
    copy = tmp_path_factory.mktemp("browser") / "runs"
    shutil.copytree(runs_folder, copy)
    return copy


@pytest.fixture(scope="module")
def console(folder):
    return open_for(folder, auth=True)


@pytest.fixture(scope="module")
def address(console):
    config = uvicorn.Config(
        make_app(console), port=0, log_level="debug", access_log=True, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


def signed_in(chromium, address, token, width, colour):
    """A page whose errors fail the test that uses it."""
    page = new_page(chromium, width, colour)
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda said: page.problems.append(said.text) if said.type == "error" else None)
    sign_in(page, address, token)
    return page


@pytest.fixture(scope="module")
def token(folder, console):
    return (folder.parent / "token").read_text().strip()


@pytest.fixture(scope="module")
def desk(chromium, address, token):
    return signed_in(chromium, address, token, "desk", "light")


@pytest.fixture(scope="module")
def phone(chromium, address, token):
    return signed_in(chromium, address, token, "phone", "dark")


CUT_OFF = """[...document.querySelectorAll(".card, .scroll")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.innerText.slice(0, 40))"""
"""Parts of a page that are wider than their frame."""
PAGES = {
    "runs": "/",
    "run": f"/runs/{IPFL}",
    "run-live": "/runs/begun",
    "client": f"/runs/{IPFL}/clients/3",
    "client-live": "/runs/begun/clients/5",
    "ledger": f"/runs/{IPFL}/ledger",
    "ledger-live": "/runs/begun/ledger",
    "compare": f"/compare?run={IPFL}&run={FEDAVG}",
}


@pytest.mark.parametrize("width", ["desk", "phone"])
@pytest.mark.parametrize("name", PAGES)
def test_page_is_whole_accessible_and_not_too_wide(request, address, name, width):
    page = request.getfixturevalue(width)
    visit(page, address + PAGES[name])
    # Every chart of a recorded run has something to show.
    if name in ("run", "client", "compare"):
        assert page.locator("[data-chart]:not(:has(canvas))").count() == 0
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (one["id"], [node["target"] for node in one["nodes"]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate(CUT_OFF) == []
    assert page.problems == []


def test_numbers_are_those_of_the_store(desk, address, folder):
    summary = json.loads((folder / "both/ipfl-plus/seed-0/summary.json").read_text())
    visit(desk, f"{address}/runs/{IPFL}")
    expect(desk.locator("#fact-accuracy")).to_have_text(percent(summary["personalized_accuracy"]["mean"]))
    expect(desk.locator("#fact-round")).to_have_text("3 of 3")
    expect(desk.locator("#clients tbody tr")).not_to_have_count(0)  # the table comes after the page
    shown = desk.locator("#clients tbody tr td:last-child").all_inner_texts()
    assert shown == [tokens(balance) for balance in summary["report"]["balances"]]
    visit(desk, f"{address}/runs/{IPFL}/clients/3")
    expect(desk.locator("#fact-balance")).to_contain_text(tokens(summary["report"]["balances"][3]))


def test_compare_two_runs(desk, address, folder):
    visit(desk, address)
    button = desk.get_by_role("button", name="Compare the ticked runs")
    expect(button).to_be_disabled()
    desk.get_by_label("Compare both/ipfl-plus/seed-0").check()
    desk.get_by_label("Compare both/fedavg/seed-0").check()
    button.click()
    desk.wait_for_url("**/compare?**")
    summary = json.loads((folder / "both/ipfl-plus/seed-0/summary.json").read_text())
    row = desk.locator("#compared tr", has_text="both/ipfl-plus/seed-0")
    expect(row).to_contain_text(points(summary["pma"]["mean"]))
    expect(row).to_contain_text(percent(summary["participation_rate"]))
    expect(desk.locator("[data-chart]:has(canvas)")).to_have_count(2)


def test_filter_runs_with_the_keyboard(desk, address):
    visit(desk, address)
    desk.keyboard.press("Tab")
    expect(desk.get_by_text("Skip to the content")).to_be_focused()
    desk.get_by_label("Filter").fill("fedavg")
    expect(desk.locator("#runs tbody tr")).to_have_count(1)
    expect(desk.locator("#runs tbody tr")).to_contain_text("both/fedavg/seed-0")


def test_search_the_ledger(desk, address, folder):
    visit(desk, f"{address}/runs/{IPFL}/ledger")
    store = RunStore.open(folder / "both/ipfl-plus/seed-0")
    posted, head = store.transfers(), store.head()
    expect(desk.locator("#transfer-count")).to_have_text(f"{tokens(len(posted))} transfers")
    if len(posted) > 50:
        desk.get_by_role("link", name="Next").click()
        expect(desk.locator("#transfers tbody tr").first).to_contain_text(posted[50].reason)
    desk.get_by_label("Kind").select_option("reward")
    rewards = [one for one in posted if one.transfer.kind == "reward"]
    expect(desk.locator("#transfer-count")).to_have_text(re.compile(rf"^{len(rewards)} transfers?$"))
    expect(desk.locator("#verify")).to_have_text(f"ipfl ledger verify {folder}/both/ipfl-plus/seed-0")
    expect(desk.locator("#head")).to_have_text(head)


def test_round_can_be_chosen(desk, address):
    visit(desk, f"{address}/runs/{IPFL}")
    expect(desk.locator("#round h3").first).to_contain_text("Round 2")
    desk.get_by_label("Round", exact=True).fill("1")
    expect(desk.locator("#round h3").first).to_contain_text("Round 1")


def test_new_round_is_seen_within_two_seconds(desk, phone, address, folder):
    """A run in progress: its next round is committed while its pages are open."""
    visit(desk, f"{address}/runs/begun")
    visit(phone, f"{address}/runs/begun/clients/5")
    for page in (desk, phone):
        expect(page.locator("#live-state")).to_contain_text("Live", timeout=PATIENCE)
    expect(desk.locator("#fact-round")).to_have_text("1 of 3")
    taken = []
    store = RunStore.open(folder / "begun")
    # The same round again: client 5 pays 20, gets 10 back and earns 7, and has 22 − 3. Then one for free.
    for number, more in ((1, {}), (2, {"transfers": ()})):
        line = {**LINE, "round": number, "events": (), **more}
        store.commit_round(number, line, f"checkpoint-{number}")
        begun = time.monotonic()
        expect(desk.locator("#fact-round")).to_have_text(f"{number + 1} of 3", timeout=PATIENCE)
        taken.append(time.monotonic() - begun)
        expect(phone.locator("#fact-balance")).to_contain_text("19", timeout=PATIENCE)
        expect(phone.locator("#movements tbody tr").first).to_contain_text(f"{number}")
    assert min(taken) < 2, taken  # 0.3 and 0.5 s on two cores with a load of 18


def test_threshold_of_an_earlier_round_says_so(desk, address):
    """The tooltip of a client's accuracy in round 4; the reference was evaluated in round 3."""
    visit(desk, f"{address}/runs/{IPFL}/clients/3")
    told = desk.evaluate("""() => CHARTS["client-accuracy"]({
      round: [3, 4], columns: { accuracy: [0.5, 0.6], threshold: [0.4, 0.4], threshold_round: [3, 3] },
    }).tooltip.formatter([
      { seriesName: "its own model", value: 0.6, dataIndex: 1 },
      { seriesName: "threshold", value: 0.4, dataIndex: 1 },
    ])""")
    assert told == "round 4\nits own model: 60.0 %\nthreshold: 40.0 %, of round 3"


def test_client_sees_only_itself(chromium, desk, address):
    visit(desk, f"{address}/runs/{IPFL}/clients/3")
    desk.get_by_role("button", name="Show the token").click()
    token = desk.locator("#token code").last.inner_text()
    page = signed_in(chromium, address, token, "phone", "light")
    page.wait_for_url(f"**/runs/{IPFL}/clients/3")
    expect(page.get_by_role("heading", name="Client 3")).to_be_visible()
    expect(page.locator("[data-chart]:has(canvas)")).to_have_count(3, timeout=PATIENCE)
    for other in (f"/runs/{IPFL}/clients/2", f"/runs/{IPFL}", "/"):
        page.goto(address + other)
        expect(page.get_by_role("heading", name="No access")).to_be_visible()
    page.context.close()
