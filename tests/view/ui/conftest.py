"""A real browser for the tests of the page."""

import os
import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

VIOLATIONS = """window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));"""


def find_browser():
    """The path of a browser; the tests are skipped without one."""
    named = os.environ.get("STOKER_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium on PATH: apt-get install chromium, or set STOKER_CHROMIUM to its path")
    return found


@pytest.fixture(scope="module")
def browser():
    path = find_browser()
    pytest.importorskip("playwright.sync_api")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # milliseconds

    with sync_playwright() as playwright:
        # Tests may run as root, which needs --no-sandbox; the page is on this machine, so no proxy is used.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--no-proxy-server"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Opens the page; at the end it fails if the page had an error or sent a request to another server."""

    @contextmanager
    def visit(server, fragment="", *, width=1280, height=800, expected=(), **how):
        context = browser.new_context(viewport={"width": width, "height": height}, **how)
        page = context.new_page()
        page.set_default_timeout(30_000)
        errors, requests = [], []
        page.on(
            "console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: errors.append(f"{error}\n{error.stack}"))
        page.on("dialog", lambda dialog: (errors.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.add_init_script(VIOLATIONS)
        page.goto(server.address + fragment)
        try:
            yield page
            assert page.evaluate("window.violations") == []
            assert [text for text in errors if not any(part in text for part in expected)] == []
            here = urlsplit(server.address).netloc
            assert {urlsplit(url).netloc for url in requests if not url.startswith("data:")} == {here}
        finally:
            context.close()

    return visit
