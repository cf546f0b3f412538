"""Who is let in, what is refused, and that nothing of a run becomes part of a page's code."""

import hashlib
import re
import socket
import stat
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.console.conftest import SCRIPT, make_app, make_worked, open_for
from typer.testing import CliRunner

import ipfl.console
from ipfl.cli import app as command
from ipfl.console import json_api, pages
from ipfl.console.access import COOKIE, AccessTokens
from ipfl.console.app import allowed_hosts, serve, server_config
from ipfl.console.guard import CONTENT_POLICY, Bucket, RequestLimits, host_name
from ipfl.errors import InputError

HOME = "http://127.0.0.1"
STATIC = Path(ipfl.console.__file__).parent / "static"
PAGES = [
    "/",
    "/compare",
    "/compare?run=both~ipfl-plus~seed-0&run=both~fedavg~seed-0",
    "/runs/worked",
    "/runs/worked/ledger",
    "/runs/worked/clients/5",
    "/runs/worked/clients",
    "/runs/damaged",
    "/nothing",
    "/login",
]


def browser(console, token=None, **options):
    web = TestClient(make_app(console, **options), base_url=HOME, follow_redirects=False)
    if token:
        web.headers["authorization"] = f"Bearer {token}"
    return web


@pytest.fixture(scope="module")
def open_web(runs_folder):
    return browser(open_for(runs_folder))


@pytest.fixture(scope="module")
def locked(runs_folder):
    return open_for(runs_folder, auth=True)


@pytest.fixture(scope="module")
def operator_token(runs_folder, locked):
    return (runs_folder.parent / "token").read_text().strip()


@pytest.fixture(scope="module")
def operator(locked, operator_token):
    return browser(locked, operator_token)


@pytest.fixture(scope="module")
def client_token(operator):
    return operator.post("/api/runs/worked/clients/5/token").json()["token"]


@pytest.fixture(scope="module")
def client(locked, client_token):
    return browser(locked, client_token)


class TestPages:
    @pytest.mark.parametrize("address", PAGES)
    def test_no_inline_code_and_strict_headers(self, open_web, address):
        answer = open_web.get(address)
        assert answer.headers["content-security-policy"] == CONTENT_POLICY
        assert "unsafe" not in CONTENT_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*\ssrc=)", answer.text)
        assert not re.search(r"<[^>]+\s(style|on[a-z]+)=", answer.text)
        assert "<style" not in answer.text
        assert not re.search(r"""(src|href)=["']?(https?:)?//""", answer.text)  # nothing from elsewhere

    @pytest.mark.parametrize("address", ["/", "/runs/worked"])
    def test_what_a_run_says_is_escaped(self, open_web, address):
        text = open_web.get(address).text
        assert SCRIPT not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert SCRIPT not in open_web.get("/", params={"text": f'">{SCRIPT}'}).text  # what was typed

    def test_unreadable_run_says_what_is_wrong(self, open_web):
        answer = open_web.get("/runs/damaged")
        assert answer.status_code == 503
        assert "is not a run store" in answer.text
        assert open_web.get("/api/runs/damaged").status_code == 503

    @pytest.mark.parametrize(
        "address", ["/runs/none", "/runs/..%2F..%2Fetc", "/api/runs/none", "/runs/worked/clients/3"]
    )
    def test_unknown_things_are_404(self, open_web, address):
        assert open_web.get(address).status_code == 404

    def test_search_says_what_is_wrong(self, open_web):
        assert "there is no client &#39;me&#39;" in open_web.get("/runs/worked/ledger?client=me").text
        assert "the cluster is a whole number" in open_web.get("/runs/worked/ledger?cluster=me").text

    def test_clients_by_name(self, open_web):
        """Of the run `begun` client 5 has a name: in tables, in the search, and as the head of its page."""
        link = '<a href="/runs/begun/clients/5">Bern &lt;b&gt;</a>'
        page = open_web.get("/runs/begun").text
        assert page.count(link) == 2  # in the auction, where it bids for two clusters
        assert link in open_web.get("/runs/begun/clients").text
        assert "<code>no_answer</code> Bern &lt;b&gt;" in page
        found = open_web.get("/runs/begun/ledger", params={"client": "Bern <b>"}).text
        assert found == open_web.get("/runs/begun/ledger", params={"client": "5"}).text.replace(
            'value="5"', 'value="Bern &lt;b&gt;"'
        )
        assert link in found
        assert "<h1>Bern &lt;b&gt;" in open_web.get("/runs/begun/clients/5").text
        names = {
            one["client"]: one["name"] for one in open_web.get("/api/runs/begun/clients").json()["clients"]
        }
        assert names == {2: None, 5: "Bern <b>", 9: None}


class TestTokens:
    def test_file_is_for_its_owner_only(self, tmp_path):
        path = tmp_path / "token"
        AccessTokens.load(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        secret = path.read_text().strip()
        assert AccessTokens.load(path).identify(secret).is_operator
        path.chmod(0o644)
        with pytest.raises(InputError, match="chmod 600"):
            AccessTokens.load(path)

    def test_short_token_is_refused(self, tmp_path):
        path = tmp_path / "token"
        path.write_text("secret")
        path.chmod(0o600)
        with pytest.raises(InputError, match="holds no token"):
            AccessTokens.load(path)

    def test_every_changed_character_voids_it(self):
        tokens = AccessTokens("s" * 43)
        token = tokens.client_token("0f" * 32, "worked", 5)
        found = tokens.identify(token)
        assert (found.client, found.run, found.place) == (5, "0f" * 32, "worked")
        for place in range(len(token) - 1):  # the last character holds bits that base64 does not use
            changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
            assert tokens.identify(changed) is None, place
        assert AccessTokens("t" * 43).identify(token) is None

    @pytest.mark.parametrize(
        "text", ["", ".", "..", "5..", "é", "5.%.x", "5.====.x", "٣.d29ya2Vk.x", "9" * 50 + ".a.b"]
    )
    def test_nonsense_is_nobody(self, text):
        assert AccessTokens("s" * 43).identify(text) is None


class TestAccess:
    def test_without_token(self, locked):
        web = browser(locked)
        assert web.get("/api/runs").status_code == 401
        for address in ("/", "/runs/worked", "/runs/worked/clients/5", "/runs/worked/ledger"):
            answer = web.get(address)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert web.get("/static/console.css").status_code == 200

    def test_token_in_an_address_is_ignored(self, locked, operator_token):
        web = browser(locked)
        for name in ("token", "access_token", COOKIE):
            assert web.get("/api/runs", params={name: operator_token}).status_code == 401

    def test_client_sees_its_own_page_and_nothing_else(self, locked, client):
        """Every address that the console has, with the client's own number and with others."""
        own = "/runs/worked/clients/5"
        seen = set()
        everywhere = [route for one in (json_api, pages) for route in one.router.routes]
        for route in everywhere:
            for method in route.methods & {"GET", "POST"}:
                for run, number in (("worked", 5), ("worked", 2), ("begun", 5)):
                    address = route.path.format(run=run, client=number, round=0)
                    if address in ("/login", "/logout"):
                        continue
                    query = "?run=worked&run=begun" if address.endswith("/compare") else ""
                    status = client.request(method, address + query).status_code
                    is_own = address.removeprefix("/api").startswith(own) and not address.endswith("/token")
                    if is_own:
                        assert status in (200, 400), (method, address)  # 400: this run has no models
                        seen.add(address)
                    else:
                        assert status == 403, (method, address)
        assert {own, f"/api{own}", f"/api{own}/movements", f"/api{own}/series"} <= seen

    def test_a_token_is_for_a_run_and_not_for_a_place(self, tmp_path):
        """The folder that a token was made for is moved, and another run begins in its place."""
        (tmp_path / "runs").mkdir()
        make_worked(tmp_path / "runs/mine")
        console = open_for(tmp_path / "runs", auth=True)
        token = console.tokens.client_token(console.identity_of("mine"), "mine", 5)
        web = browser(console, token)
        assert web.get("/runs/mine/clients/5").status_code == 200
        (tmp_path / "runs/mine").rename(tmp_path / "runs/moved")
        make_worked(tmp_path / "runs/mine", rounds=3)
        for place, status in (("mine", 403), ("moved", 200), ("none", 403)):
            found = browser(open_for(tmp_path / "runs", auth=True), token)
            assert found.get(f"/runs/{place}/clients/5").status_code == status, place

    def test_sign_in_with_a_form(self, locked, client_token):
        web = browser(locked)
        answer = web.post("/login", data={"token": client_token})
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs/worked/clients/5")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert client_token not in answer.headers["location"] + answer.text
        assert web.get("/runs/worked/clients/5").status_code == 200
        assert web.get("/runs/worked/clients/2").status_code == 403
        web.post("/logout")
        assert web.get("/runs/worked/clients/5").status_code == 303

    def test_wrong_token(self, locked):
        answer = browser(locked).post("/login", data={"token": "wrong"})
        assert answer.status_code == 401
        assert "not valid" in answer.text
        assert "set-cookie" not in answer.headers

    def test_tokens_need_auth(self, open_web):
        assert open_web.post("/api/runs/worked/clients/5/token").status_code == 403


class TestGuard:
    def test_other_names_are_refused(self, open_web):
        assert open_web.get("/", headers={"host": "evil.example"}).status_code == 421
        assert open_web.get("/", headers={"host": "localhost:8080"}).status_code == 200

    def test_names(self):
        found = [host_name(text) for text in ("127.0.0.1:80", "[::1]:80", "Localhost", "")]
        assert found == ["127.0.0.1", "::1", "localhost", ""]
        assert allowed_hosts("0.0.0.0") is None
        assert allowed_hosts("192.0.2.7") == {"127.0.0.1", "localhost", "::1", "192.0.2.7"}

    @pytest.mark.parametrize(
        "headers", [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
    )
    def test_other_sites_are_refused(self, operator, headers):
        assert operator.post("/api/runs/worked/clients/5/token", headers=headers).status_code == 403

    def test_own_pages_are_not(self, operator):
        headers = {"origin": HOME, "sec-fetch-site": "same-origin"}
        assert operator.post("/api/runs/worked/clients/5/token", headers=headers).status_code == 200

    def test_large_bodies(self, locked):
        web = browser(locked)
        assert web.post("/login", content=b"x" * 70_000).status_code == 413
        parts = (b"x" * 1000 for _ in range(70))  # without a length
        assert web.post("/login", content=parts).status_code == 413

    def test_rate(self, runs_folder):
        web = browser(open_for(runs_folder, limits=RequestLimits(per_second=0.001, burst=3)))
        statuses = [web.get("/login").status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]

    def test_rate_of_sign_ins(self, runs_folder):
        limits = RequestLimits(sign_ins_per_minute=2, per_second=1e6, burst=1e6)
        web = browser(open_for(runs_folder, auth=True, limits=limits))
        statuses = [web.post("/login", data={"token": "x" * n}).status_code for n in (1, 2, 3)]
        assert statuses == [401, 401, 429]

    def test_bucket_fills_again(self, monkeypatch):
        now = 0.0
        monkeypatch.setattr("ipfl.console.guard.time.monotonic", lambda: now)
        bucket = Bucket(per_second=2, size=1)
        assert [bucket.take("a"), bucket.take("a"), bucket.take("b")] == [True, False, True]
        now = 0.5  # half a second at two a second: one more
        assert bucket.take("a")


@pytest.mark.parametrize(
    "proxy, statuses",
    [(None, [401] * 10 + [429] * 2), ("192.0.2.99", [401] * 10 + [429] * 2), ("127.0.0.1", [401] * 12)],
)
def test_only_a_named_proxy_says_who_asks(runs_folder, proxy, statuses):
    """Ten attempts a minute and sender: whoever chooses his sender anew each time has as many as he likes."""
    limits = RequestLimits(sign_ins_per_minute=10)
    settings = server_config(make_app(open_for(runs_folder, auth=True, limits=limits)), proxy)
    settings.load()
    web = TestClient(settings.loaded_app, base_url=HOME, client=("127.0.0.1", 5000))
    tries = [
        web.post("/login", data={"token": "wrong"}, headers={"x-forwarded-for": f"192.0.2.{number}"})
        for number in range(12)
    ]
    assert [answer.status_code for answer in tries] == statuses


class TestCommand:
    def run(self, *arguments):
        return CliRunner().invoke(command, ["console", *arguments])

    def test_other_addresses_need_auth(self, runs_folder):
        done = self.run("--runs", str(runs_folder), "--host", "0.0.0.0")
        assert done.exit_code == 2
        assert done.stderr.count("\n") == 1
        assert "--auth" in done.stderr

    def test_bad_places(self, tmp_path):
        assert self.run("--runs", str(tmp_path / "none")).exit_code == 2

    def test_no_address_is_told_where_another_program_listens(self, runs_folder):
        told = []
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(
                InputError, match=f"cannot listen on 127.0.0.1:{port}: [A-Z][a-z ]+; try another --port"
            ):
                serve(open_for(runs_folder), "127.0.0.1", port, lambda: told.append("address"))
        assert told == []


def test_vendored_files_are_those_of_the_list():
    told = dict(
        re.findall(r"^([0-9a-f]{64})  (\S+\.js)$", (STATIC / "vendor/README.md").read_text(), re.M)[::-1]
    )
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").glob("*.js")
    }
    assert {name: digest for digest, name in told.items()} == files
