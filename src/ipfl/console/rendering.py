"""What all pages are made with: templates and their filters, fields of forms, and links to other pages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.templating import Jinja2Templates

from ipfl.console.accounts import round_label
from ipfl.methods import DEFAULT
from ipfl.report.result_tables import format_size

templates = Jinja2Templates(Path(__file__).parent / "templates")


def _in_percent(value: float) -> float:
    """Without the error of the last bits: one mean, summed in two orders, is shown as one number."""
    return round(100 * value, 9)


def percent(value: float | None) -> str:
    """A share in percent, or a dash."""
    return "–" if value is None else f"{_in_percent(value):.1f} %"


def points(value: float | None) -> str:
    """A difference of shares in percentage points, or a dash."""
    return "–" if value is None else f"{_in_percent(value):+.1f} pts".replace("-", "−")


def tokens(value: int | None) -> str:
    """A number of tokens with thin spaces, or a dash."""
    return "–" if value is None else f"{value:,}".replace(",", "\u202f").replace("-", "−")


def ago(moment: float | None) -> str:
    """How long ago something was."""
    if moment is None:
        return ""
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


templates.env.filters.update(
    percent=percent, points=points, tokens=tokens, ago=ago, size=format_size, round_label=round_label
)


def render(request: Request, template: str, console: Any, **values: Any) -> HTMLResponse:
    """A page with what all pages need."""
    identity = console.access.identify(request)
    shared = {
        "identity": identity,
        "has_auth": console.access.tokens is not None,
        "may_start": console.access.tokens is not None and console.access.may_start,
        "runs_folder": console.runs.folder,
        "default_method": DEFAULT,
    }
    return templates.TemplateResponse(request, template, shared | values)


def is_fragment(request: Request) -> bool:
    """Whether only a part of a page is wanted."""
    return request.headers.get("hx-request") == "true"


async def read_fields(request: Request) -> dict[str, list[str]]:
    """The fields of a form. Its size is limited in front of here."""
    body = await request.body()
    return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=300)


def go_to(request: Request, address: str) -> Response:
    """Sends the browser to another page."""
    if is_fragment(request):
        return Response(status_code=204, headers={"hx-redirect": address})
    return RedirectResponse(address, 303)
