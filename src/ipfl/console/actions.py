"""Pages that do something: start, stop and resume runs, sign in and out. `pages` has those that only show."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from ipfl.console import api
from ipfl.console.access import COOKIE
from ipfl.console.console import ConsoleOf, ForOperator, ForStarter, Run
from ipfl.console.form import make_form, read_form
from ipfl.console.guard import peer_of
from ipfl.console.records import Command
from ipfl.console.rendering import go_to, read_fields, render
from ipfl.errors import InputError
from ipfl.methods import DEFAULT

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/start")
def show_start(request: Request, console: ConsoleOf, _: ForOperator) -> Response:
    """The form that starts a run."""
    number, folder = 1, console.runs.folder
    while folder is not None and (folder / f"run-{number}").exists():
        number += 1
    plan = {"name": [f"run-{number}"], "methods": [DEFAULT]}
    form = make_form()
    try:
        command = Command(command=console.starter.command(read_form(plan)))
    except InputError as error:
        command = Command(command="", problem=str(error))
    return render(request, "start.html", console, form=form, name=f"run-{number}", command=command)


@router.post("/start/command")
async def show_command(request: Request, console: ConsoleOf, _: ForOperator) -> Response:
    """The equivalent command, as a fragment."""
    filled = await read_fields(request)
    command = await run_in_threadpool(api.preview_command, console, _, filled)
    return render(request, "command.html", console, command=command)


@router.post("/start")
async def start(request: Request, console: ConsoleOf, _: ForStarter) -> Response:
    """Starts a run and goes to the list of runs."""
    filled = await read_fields(request)
    try:
        started = await run_in_threadpool(lambda: console.starter.start(read_form(filled)))
    except InputError as error:
        return render(request, "command.html", console, command=Command(command="", problem=str(error)))
    return go_to(request, f"/?{urlencode({'text': started.name})}")


@router.post("/runs/{run}/stop")
def stop(request: Request, console: ConsoleOf, _: ForStarter, run: Run) -> Response:
    """Stops a run."""
    console.starter.stop(run)
    return go_to(request, f"/runs/{run.key}")


@router.post("/runs/{run}/resume")
def resume(request: Request, console: ConsoleOf, identity: ForStarter, run: Run) -> Response:
    """Resumes a run."""
    api.resume_run(console, identity, run)
    return go_to(request, f"/runs/{run.key}")


@router.get("/login")
def show_login(request: Request, console: ConsoleOf) -> Response:
    """The form for a token."""
    return render(request, "login.html", console, problem=None)


@router.post("/login")
async def login(request: Request, console: ConsoleOf) -> Response:
    """Takes a token into a cookie that scripts cannot read and other sites cannot send."""
    access = console.access
    if access.tokens is None:
        return RedirectResponse("/", 303)
    if not console.sign_ins.take(peer_of(request.scope)):
        answer = render(request, "login.html", console, problem="Too many attempts. Wait a minute.")
        answer.status_code = 429
        return answer
    given = (await read_fields(request)).get("token", [""])[0].strip()
    identity = access.tokens.identify(given)
    if identity is None:
        problem = "This token is not valid here. Copy it whole, without spaces."
        answer = render(request, "login.html", console, problem=problem)
        answer.status_code = 401
        return answer
    home = "/" if identity.is_operator else f"/runs/{identity.run}/clients/{identity.client}"
    response = RedirectResponse(home, 303)
    response.set_cookie(
        COOKIE,
        given,
        max_age=12 * 3600,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )
    return response


@router.post("/logout")
def logout() -> Response:
    """Forgets the token."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response
