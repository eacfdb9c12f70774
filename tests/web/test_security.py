"""Safe by default: who may look, who may act, what another site can do, and what is never shown."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException

from recruiter import Recruiter, current_job
from recruiter.errors import SettingsError
from recruiter.web import BasicAuth, ProxyHeader, User, dashboard
from recruiter.web.access import LocalToken
from recruiter.web.actions import VERBS
from recruiter.web.serializers import place as place_of
from recruiter.web.server import access_of, served
from tests.web.conftest import Consoles

TEMPLATES = Path(__file__).parents[2] / "src" / "recruiter" / "web" / "templates"
PAGES = ("", "jobs", "workers", "groups", "schedules", "problems", "api/jobs", "api/overview", "static/console.js")
"""Not `static/console.css`: a refusal looks like a page of the console, and the file is the same everywhere."""


TOKEN = "a-token-of-a-test-0123456789"


class TestWithoutAuthentication:
    @pytest.fixture
    def client(self, console: Consoles) -> httpx.Client:
        """Of a console as `recruiter web` starts it; the client has opened the printed link."""
        made = console(access=LocalToken(TOKEN), actions=True)
        made.get("", params={"token": TOKEN})
        return made

    @pytest.fixture
    def stranger(self, client: httpx.Client) -> Iterator[httpx.Client]:
        with httpx.Client(base_url=client.base_url, trust_env=False) as made:
            yield made

    def test_a_mounted_console_without_access_refuses_and_says_why(self, console: Consoles) -> None:
        client = console(access=None)
        for page in PAGES:
            answer = client.get(page)
            assert answer.status_code == 403, page
            assert "access=" in answer.text
        assert client.post("api/actions", json={"verb": "block-starts"}).status_code == 403

    def test_the_token_opens_every_page_and_nothing_else_does(
        self, client: httpx.Client, stranger: httpx.Client
    ) -> None:
        bearer = {"authorization": f"Bearer {TOKEN}"}
        for page in PAGES:
            assert client.get(page).status_code == 200, page
            assert stranger.get(page, headers=bearer).status_code == 200, page
            for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "recruiter_token_80=wrong"}):
                assert stranger.get(page, headers=headers).status_code == 401, (page, headers)
            assert stranger.get(page, params={"token": "wrong"}).status_code == 401, page
        assert stranger.post("api/actions", json={"verb": "block-starts"}).status_code == 401

    def test_the_link_moves_the_token_into_a_cookie_that_no_other_site_can_use(self, stranger: httpx.Client) -> None:
        answer = stranger.get("jobs", params={"state": "failed", "token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=failed")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert stranger.get("jobs").status_code == 200

    def test_each_start_has_its_own_token(self) -> None:
        assert LocalToken().token != LocalToken().token
        with pytest.raises(SettingsError, match="at least 16"):
            LocalToken("short")

    def test_what_a_proxy_or_another_name_brings_is_refused_and_says_why(self, console: Consoles) -> None:
        """A page whose name was made to point here (DNS rebinding), and a proxy that forgot to sign people in."""
        client = console(access=LocalToken(TOKEN), client={"headers": {"authorization": f"Bearer {TOKEN}"}})
        for headers in (
            {"host": "jobs.example.org"},
            {"host": "127.0.0.1.evil.example"},
            {"x-forwarded-for": "203.0.113.9"},
            {"forwarded": "for=203.0.113.9"},
            {"x-real-ip": "203.0.113.9"},
            {"via": "1.1 proxy"},
        ):
            for page in PAGES:
                answer = client.get(page, headers=headers)
                assert answer.status_code == 403, (headers, page)
                assert "RECRUITER_WEB_USERS" in answer.text

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
    def test_another_address_is_refused_before_anything_listens(self, host: str) -> None:
        with pytest.raises(SettingsError, match=r"without sign-in.*RECRUITER_WEB_USERS"):
            access_of(host)

    @pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
    def test_loopback_is_not(self, host: str) -> None:
        access_of(host)


class TestBasicAuth:
    @pytest.fixture
    def client(self, console: Consoles, monkeypatch: pytest.MonkeyPatch) -> httpx.Client:
        monkeypatch.setenv("RECRUITER_WEB_USERS", "ada:correct horse, bob:battery")
        return console(access=None, actions=True)

    def test_a_known_name_with_its_password_may_look_from_anywhere(self, client: httpx.Client) -> None:
        for auth in (("ada", "correct horse"), ("bob", "battery")):
            assert client.get("", auth=auth, headers={"host": "jobs.example.org"}).status_code == 200

    @pytest.mark.parametrize(
        "auth", [None, ("ada", "wrong"), ("ada", ""), ("eve", "correct horse"), ("ada", "battery"), ("", "")]
    )
    def test_a_wrong_password_is_refused_everywhere(self, client: httpx.Client, auth: tuple[str, str] | None) -> None:
        for page in ("", "api/jobs", "live/overview", "static/console.js", "api/openapi.json"):
            answer = client.get(page, auth=auth) if auth else client.get(page)
            assert answer.status_code == 401, page
            assert "Basic" in answer.headers["www-authenticate"]
        refused = client.post("api/actions", auth=auth or ("", ""), json={"verb": "block-starts"})
        assert refused.status_code == 401

    def test_an_error_before_signing_in_names_nothing(self, client: httpx.Client, recruiter: Recruiter) -> None:
        answers = [client.get("nothing/here"), client.post("jobs"), client.get("api/nothing")]
        assert [answer.status_code for answer in answers] == [401, 401, 401]
        for answer in answers:
            assert "MongoDB" not in answer.text
            assert recruiter.target.database not in answer.text
        missing = client.get("nothing/here", auth=("bob", "battery"))
        assert (missing.status_code, recruiter.target.database in missing.text) == (404, True)

    def test_a_header_that_is_none_is_refused(self, client: httpx.Client) -> None:
        for header in ("Basic", "Basic !!", "Basic YQ==", "Bearer x", "Basic \x80"):
            answer = client.get("", headers={b"authorization": header.encode("latin-1")})
            assert answer.status_code == 401, header

    def test_guesses_are_bounded_per_address_and_logged_without_secrets(
        self, client: httpx.Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        answers = [client.get("", auth=("ada" if n % 2 else f"name{n}", f"guess{n}")) for n in range(15)]
        assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 5
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
        assert client.get("", auth=("ada", "correct horse")).status_code == 429
        assert "refused the password of ada from 127.0.0.1" in caplog.text
        assert "guess" not in caplog.text
        assert "name4" not in caplog.text, "a password may be in the wrong field"

    def test_guesses_are_bounded_per_name_but_do_not_lock_its_owner_out(self, console: Consoles) -> None:
        client = console(access=BasicAuth({"ada": "correct horse", "bob": "battery"}, proxies=["127.0.0.1"]))
        home, elsewhere = {"x-forwarded-for": "203.0.113.1"}, {"x-forwarded-for": "198.51.100.9"}
        right = ("ada", "correct horse")
        assert client.get("", auth=right, headers=home).status_code == 200
        answers = [
            client.get("", auth=("ada", f"guess{n}"), headers={"x-forwarded-for": f"1.2.3.4, 192.0.2.{n}"})
            for n in range(12)
        ]
        assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
        assert client.get("", auth=right, headers=elsewhere).status_code == 429
        assert client.get("", auth=right, headers=home).status_code == 200
        assert client.get("", auth=("bob", "battery"), headers=elsewhere).status_code == 200

    @pytest.mark.parametrize("users", ["ada", ":", "ada:", ":secret"])
    def test_users_that_make_no_sense_are_refused(self, monkeypatch: pytest.MonkeyPatch, users: str) -> None:
        monkeypatch.setenv("RECRUITER_WEB_USERS", users)
        with pytest.raises(SettingsError, match="NAME:WORD"):
            BasicAuth.from_environment()


class TestProxyHeader:
    def test_who_the_trusted_proxy_names_may_look_and_is_written_down(
        self, console: Consoles, recruiter: Recruiter
    ) -> None:
        client = console(access=ProxyHeader("X-Forwarded-User", secret=TOKEN), actions=True)
        client.headers["x-recruiter-secret"] = TOKEN

        assert client.get("").status_code == 401, "the proxy names nobody"
        named = {"x-forwarded-user": "grace"}
        answer = client.post("api/actions", json={"verb": "pause-group", "name": "mail"}, headers=named)

        assert answer.status_code == 200
        assert recruiter.controls.rules().paused["group:mail"].by == "grace"

    def test_another_machine_that_says_the_header_is_refused(self, console: Consoles) -> None:
        client = console(access=ProxyHeader("X-Forwarded-User", trusted=["10.9.8.0/24"], secret=TOKEN))
        client.headers["x-recruiter-secret"] = TOKEN
        answer = client.get("", headers={"x-forwarded-user": "grace"})
        assert answer.status_code == 403
        assert "Only the proxy" in answer.text

    def test_two_names_are_none(self, console: Consoles) -> None:
        client = console(access=ProxyHeader("X-Forwarded-User", secret=TOKEN))
        client.headers["x-recruiter-secret"] = TOKEN
        two = [("x-forwarded-user", "grace"), ("x-forwarded-user", "root")]
        assert client.get("", headers=two).status_code == 401

    def test_a_program_without_the_secret_is_refused(self, console: Consoles, monkeypatch: pytest.MonkeyPatch) -> None:
        named = {"x-forwarded-user": "root"}
        for access in (ProxyHeader("X-Forwarded-User", secret=TOKEN), ProxyHeader("X-Forwarded-User")):
            client = console(access=access, actions=True)
            for headers in (named, {**named, "x-recruiter-secret": "guess"}, {**named, "x-recruiter-secret": ""}):
                assert client.get("", headers=headers).status_code == 403
                assert client.post("api/actions", json={"verb": "block-starts"}, headers=headers).status_code == 403
        with pytest.raises(SettingsError, match="RECRUITER_WEB_PROXY_SECRET"):
            access_of("127.0.0.1", "X-Forwarded-User")
        monkeypatch.setenv("RECRUITER_WEB_PROXY_SECRET", TOKEN)
        access_of("127.0.0.1", "X-Forwarded-User")

    def test_a_name_in_utf_8_is_read_as_such(self, console: Consoles) -> None:
        client = console(access=ProxyHeader("X-Forwarded-User", secret=TOKEN))
        headers = {b"x-recruiter-secret": TOKEN.encode(), b"x-forwarded-user": "Gödel 哲".encode()}
        assert "Gödel 哲" in client.get("", headers=headers).text

    def test_only_the_given_host_names_are_served(self, console: Consoles) -> None:
        client = console(access=BasicAuth({"ada": "secret"}), hosts=["jobs.example.org"])
        for host, status in (("jobs.example.org", 200), ("JOBS.example.org:8443", 200), ("evil.example", 421)):
            assert client.get("", auth=("ada", "secret"), headers={"host": host}).status_code == status


class TestRights:
    """Viewers look, operators act."""

    @pytest.mark.parametrize("kind", ["dependency", "passwords", "proxy"])
    def test_a_viewer_sees_everything_and_can_do_nothing(
        self, console: Consoles, recruiter: Recruiter, kind: str
    ) -> None:
        id = recruiter.job("hello", {}).enqueue().id

        def user(x_user: Annotated[str, Header()]) -> User:
            return User(x_user, "operator" if x_user == "ada" else "viewer")

        access: Any = {
            "dependency": user,
            "passwords": BasicAuth({"ada": "secret", "bob": "secret"}, operators=["ada"]),
            "proxy": ProxyHeader("X-User", secret=TOKEN, operators=["ada"]),
        }[kind]
        client = console(access=access, actions=True, client={"headers": {"x-recruiter-secret": TOKEN}})

        def headers(name: str) -> dict[str, str]:
            basic = base64.b64encode(f"{name}:secret".encode()).decode()
            return {"x-user": name, "authorization": f"Basic {basic}"}

        def live(name: str) -> str:
            with client.stream("GET", "live/groups", headers=headers(name)) as answer:
                lines = dropwhile(lambda line: line != "event: content", answer.iter_lines())
                return "".join(takewhile(bool, lines))

        for page in ("jobs", f"job?id={id}", "groups"):
            assert "confirm" in client.get(page, headers=headers("ada")).text, page
            assert "confirm" not in client.get(page, headers=headers("bob")).text, page
        assert ("confirm" in live("ada"), "confirm" in live("bob")) == (True, False)
        wanted = {"verb": "pause-group", "name": "mail"}
        refused = client.post("api/actions", json=wanted, headers=headers("bob"))
        assert (refused.status_code, "bob may look, but not act" in refused.text) == (403, True)
        assert client.post("do", data=wanted, headers=headers("bob")).status_code == 403
        assert recruiter.controls.rules().paused == {}

        assert client.post("api/actions", json=wanted, headers=headers("ada")).status_code == 200
        assert recruiter.controls.rules().paused["group:mail"].by == "ada"
        assert [entry.by for entry in recruiter.store.actions.latest(9)] == ["ada"]

    def test_every_change_of_a_job_has_the_name_of_its_operator_and_a_viewer_changes_nothing(
        self, console: Consoles, recruiter: Recruiter
    ) -> None:
        @recruiter.task
        def approve() -> None:
            current_job.wait_for("approved")

        waits = approve.enqueue()
        recruiter.run(approve)
        job = recruiter.job("hello", {}).schedule_in("1 hour").enqueue()
        access = BasicAuth({"ada": "secret", "bob": "secret"}, operators=["ada"])
        client = console(access=access, actions=True)
        changes: list[dict[str, Any]] = [
            {"verb": "reschedule", "ids": [str(job.id)], "to": "2h", "reason": "too early"},
            {"verb": "reprioritise", "ids": [str(job.id)], "to": "5", "reason": "urgent"},
            {"verb": "run", "ids": [str(job.id)], "reason": "now"},
            {"verb": "cancel", "ids": [str(job.id)], "reason": "enough"},
            {"verb": "send-signal", "name": str(waits.id), "to": "approved"},
        ]

        def do(name: str) -> list[int]:
            answers = [client.post("api/actions", json=change, auth=(name, "secret")) for change in changes]
            return [answer.status_code for answer in answers]

        assert do("bob") == [403] * 5
        assert recruiter.find(job.id).history == ()

        assert do("ada") == [200] * 5
        changed = recruiter.find(job.id)
        assert [(entry.what, entry.by, entry.reason) for entry in changed.history] == [
            ("rescheduled", "ada", "too early"),
            ("reprioritised", "ada", "urgent"),
            ("run-now", "ada", "now"),
            ("cancelled", "ada", "enough"),
        ]
        assert [signal.by for signal in recruiter.find(waits.id).signals] == ["ada"]
        past = client.get("api/actions", auth=("bob", "secret")).json()
        assert [(entry["by"], entry["verb"]) for entry in reversed(past)] == [("ada", each["verb"]) for each in changes]

    def test_an_operator_who_is_no_user_and_a_role_that_is_none_are_refused(self) -> None:
        with pytest.raises(SettingsError, match="'eve' is no user"):
            BasicAuth({"ada": "secret"}, operators=["eve"])
        with pytest.raises(SettingsError, match="a viewer or an operator"):
            User("ada", "admin")  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match="--operator needs users"):
            access_of("127.0.0.1", operators=["ada"])


class TestInAnApplication:
    @pytest.fixture
    def app(self, recruiter: Recruiter) -> Iterator[httpx.Client]:
        """Mounted under /jobs, behind the application's own dependency."""

        def current_user(x_session: Annotated[str | None, Header()] = None) -> dict[str, str] | None:
            if x_session == "broken":
                raise HTTPException(418, "no tea")
            return {"name": "barbara"} if x_session == "s3cr3t" else None

        app = FastAPI()

        @app.get("/")
        def home() -> str:
            return "the application"

        app.mount("/jobs", dashboard(recruiter, access=current_user, actions=True))
        with served(app) as address, httpx.Client(base_url=address, trust_env=False, verify=False) as client:
            yield client

    def test_it_is_served_under_its_path_with_links_that_stay_there(self, app: httpx.Client) -> None:
        page = app.get("/jobs/", headers={"x-session": "s3cr3t"})
        assert page.status_code == 200
        assert '<base href="/jobs/">' in page.text
        assert app.get("/").json() == "the application"
        (script,) = set(re.findall(r'src="(static/console\.js[^"]*)"', page.text))
        assert app.get(f"/jobs/{script}", headers={"x-session": "s3cr3t"}).status_code == 200

    def test_the_applications_own_dependency_decides_and_names(self, app: httpx.Client, recruiter: Recruiter) -> None:
        assert app.get("/jobs/").status_code == 401
        assert app.get("/jobs/", headers={"x-session": "broken"}).status_code == 418
        wanted = {"verb": "block-starts", "reason": "a fire"}
        assert app.post("/jobs/api/actions", json=wanted, headers={"x-session": "s3cr3t"}).status_code == 200
        assert recruiter.controls.rules().paused["fleet"].by == "barbara"

    def test_a_search_leads_to_a_place_in_the_console(self, app: httpx.Client) -> None:
        answer = app.get("/jobs/find", params={"q": "state:failed"}, headers={"x-session": "s3cr3t"})
        assert answer.headers["location"] == "/jobs/jobs?state=failed"


class TestReadOnly:
    def test_every_action_is_refused_and_nothing_is_done(self, console: Consoles, recruiter: Recruiter) -> None:
        client = console()
        for verb in VERBS:
            words = {"verb": verb, "name": "task:x", "at_once": "1"}
            ids = {"ids": ["x"]} if verb in ("cancel", "recover", "remove") else {}
            for answer in (
                client.post("api/actions", json={**words, **ids}),
                client.post("do", data={**words, "id": "x"}),
            ):
                assert answer.status_code == 403, verb
                assert "read-only" in answer.text
        assert recruiter.controls.rules().paused == {}
        assert recruiter.controls.limits() == []
        assert recruiter.store.actions.latest(1) == []

    def test_nothing_on_a_page_offers_one(self, console: Consoles, recruiter: Recruiter) -> None:
        id = recruiter.job("hello", {}).enqueue().id
        client = console()
        for page in ("", "jobs", f"job?id={id}", "workers", "groups", "schedules", "problems"):
            page_text = client.get(page).text
            assert "confirm?" not in page_text, page
            assert 'action="confirm"' not in page_text, page


class TestOtherSites:
    def test_what_another_site_sends_is_refused(self, console: Consoles, recruiter: Recruiter) -> None:
        client = console(actions=True)
        for headers in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://127.0.0.1:1"},
            {"origin": "http://127.0.0.1.evil.example"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "http://[", "sec-fetch-site": "none"},
        ):
            assert client.post("do", data={"verb": "block-starts"}, headers=headers).status_code == 403, headers
            answer = client.post("api/actions", json={"verb": "block-starts"}, headers=headers)
            assert answer.status_code == 403, headers
        assert recruiter.controls.rules().paused == {}

    def test_its_own_page_may_act_behind_a_proxy_that_rewrites_the_host(self, console: Consoles) -> None:
        own = {"origin": "https://jobs.example.org", "sec-fetch-site": "same-origin"}
        assert console(actions=True).post("do", data={"verb": "block-starts"}, headers=own).status_code == 200
        del own["sec-fetch-site"]  # older browsers, and addresses without TLS
        named = console(actions=True, hosts=["jobs.example.org", "127.0.0.1"])
        assert named.post("do", data={"verb": "allow-starts"}, headers=own).status_code == 200

    def test_what_its_own_page_or_a_script_sends_is_done(self, console: Consoles, recruiter: Recruiter) -> None:
        client = console(actions=True)
        own = {"origin": str(client.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
        assert client.post("do", data={"verb": "block-starts"}, headers=own).status_code == 200
        assert "fleet" in recruiter.controls.rules().paused
        assert client.post("api/actions", json={"verb": "allow-starts"}).status_code == 200
        assert recruiter.controls.rules().paused == {}

    def test_no_page_runs_another_script_nor_can_be_framed_nor_kept(self, console: Consoles) -> None:
        client = console()
        for page in PAGES:
            headers = client.get(page).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy, page
            assert "script-src 'self';" in policy, page
            assert "unsafe" not in policy, page
            assert "frame-ancestors 'none'" in policy, page
            assert headers["x-content-type-options"] == "nosniff", page
            assert page.startswith("static") or headers["cache-control"] == "no-store", page

    def test_a_link_back_leads_nowhere_else(self, console: Consoles) -> None:
        client = console(actions=True)
        for place in ("https://evil.example/", "//evil.example", "javascript:alert(1)", "/etc", "jobs/../x"):
            page = client.get("confirm", params={"verb": "block-starts", "back": place}).text
            assert "evil" not in page
            assert "javascript:" not in page


class TestTemplates:
    @pytest.mark.parametrize("template", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
    def test_print_everything_escaped_and_have_no_inline_script_or_style(self, template: Path) -> None:
        text = template.read_text()
        assert not re.search(r"\|\s*safe|autoescape|Markup", text)
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert not re.search(r"\s(style|on[a-z]+|hx-on[^=]*)=", text)
        for attribute in re.findall(r"=\{\{", text):
            pytest.fail(f"an attribute without quotes: {attribute}")


class TestSecrets:
    @pytest.fixture
    def secret(self, recruiter: Recruiter) -> str:
        data = {
            "user": "ada",
            "password": "hunter2",
            "options": {"API_KEY": "hunter2", "deep": [{"Authorization": "hunter2"}]},
            "token": ["hunter2"],
        }
        return str(recruiter.job("login", data).enqueue().id)

    def test_are_shown_nowhere(self, console: Consoles, secret: str) -> None:
        client = console()
        places = ["jobs", f"jobs?open={secret}", "api/jobs", f"api/job?id={secret}"]
        places += [f"job?id={secret}&tab={tab}" for tab in ("arguments", "document", "result", "attempts")]
        for place in places:
            answer = client.get(place)
            assert answer.status_code == 200
            assert "hunter2" not in answer.text, place
            assert "ada" in answer.text or "tab=" in place

    def test_are_masked_in_errors_of_steps_and_jobs(self, console: Consoles, recruiter: Recruiter) -> None:
        @recruiter.task
        def connect() -> None:
            raise ConnectionError("no answer from mongodb://ada:hunter2@db1/shop")

        flow = recruiter.flow("one")
        flow.add(connect)
        id = flow.start().id
        recruiter.run_all(connect)
        client = console()
        for place in (f"flow?id={id}", f"api/flow?id={id}", "jobs", "api/jobs", "", "api/overview"):
            text = client.get(place).text
            assert ("ConnectionError" in text, "hunter2" in text) == (True, False), place

    def test_cannot_be_found_out_by_asking(self, console: Consoles, secret: str) -> None:
        del secret
        client = console()
        for path in ("password", "options.API_KEY", "token"):
            for place in ("jobs", "api/jobs", "api/jobs/count", "counts"):
                answer = client.get(place, params={"arg": f"{path}=hunter2"})
                assert answer.status_code == 400 or place == "counts", (path, place)
                assert "cannot be asked for" in answer.text or place == "counts", path

    def test_other_keys_can_be_named(self, console: Consoles, recruiter: Recruiter) -> None:
        recruiter.job("visit", {"patient": "Ada L.", "password": "x1y2z3"}).enqueue()
        for wanted, shows_password in (({"redact": "patient"}, False), ({"redact_only": "patient"}, True)):
            text = console(**wanted).get("jobs").text
            assert ("Ada L." in text, "x1y2z3" in text) == (False, shows_password), wanted
        assert "x1y2z3" in console(redact_only="").get("jobs").text


def test_the_address_with_a_password_in_it_is_shown_without(recruiter: Recruiter, console: Consoles) -> None:
    assert place_of("mongodb://***@db1:27017,db2:27017/shop?x=1", "shop") == "shop@db1:27017,db2:27017"
    assert recruiter.target.database in console().get("").text


class TestMetrics:
    """Scrapers ask from where people do not, and cannot sign in as people do."""

    def test_they_follow_the_rules_of_the_console(self, console: Consoles) -> None:
        assert "recruiter_up 1.0" in console().get("metrics").text
        assert console(access=None).get("metrics").status_code == 403
        guarded = console(access=BasicAuth({"ada": "secret"}))
        assert guarded.get("metrics").status_code == 401
        told = guarded.get("metrics", auth=("ada", "secret"))
        assert told.headers["content-type"].startswith("text/plain")
        assert "recruiter_leader_present 0.0" in told.text

    def test_a_token_opens_them_and_nothing_else(self, console: Consoles, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RECRUITER_METRICS_TOKEN", "s3cret")
        client = console(access=ProxyHeader("X-User", ["192.0.2.1"]))
        right, wrong = {"authorization": "Bearer s3cret"}, {"authorization": "Bearer secret"}
        assert client.get("metrics", headers=right).status_code == 200
        for page in PAGES:
            assert client.get(page, headers=right).status_code == 403, page
        for headers in (wrong, {}):
            assert client.get("metrics", headers=headers).status_code == 403

    def test_without_a_token_none_is_right(self, console: Consoles, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RECRUITER_METRICS_TOKEN", " ")
        client = console(access=ProxyHeader("X-User", ["192.0.2.1"]))
        for said in ("Bearer", "", "Bearer None"):
            assert client.get("metrics", headers={"authorization": said}).status_code == 403
