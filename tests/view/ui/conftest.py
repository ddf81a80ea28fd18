"""A real browser for the tests of the page."""

import os
import shutil
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from stoker.view.ui import Server

VIOLATIONS = """window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));"""


def chromium():
    """The path of a browser; without one the test is skipped (`.ci/run` installs one)."""
    named = os.environ.get("STOKER_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium on PATH: apt-get install chromium, or set STOKER_CHROMIUM to one")
    return found


@pytest.fixture(scope="module")
def browser():
    path = chromium()
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # milliseconds; a busy machine is slow, not wrong

    with sync_playwright() as playwright:
        # Without a sandbox: tests run as root. Without proxies: the page is on this machine.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--no-proxy-server"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Opens the page; at the end nothing may have gone wrong in it, and nobody else may have been asked."""

    @contextmanager
    def visit(server, fragment="", *, width=1280, height=800, expected=(), **how):
        context = browser.new_context(viewport={"width": width, "height": height}, **how)
        page = context.new_page()
        page.set_default_timeout(30_000)
        wrong, asked = [], []
        page.on("console", lambda told: wrong.append(told.text) if told.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(f"{error}\n{error.stack}"))
        page.on("dialog", lambda dialog: (wrong.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.add_init_script(VIOLATIONS)
        page.goto(server.address + fragment)
        try:
            yield page
            assert page.evaluate("window.violations") == []
            assert [text for text in wrong if not any(part in text for part in expected)] == []
            here = urlsplit(server.address).netloc
            assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {here}
        finally:
            context.close()

    return visit


@contextmanager
def served(folder, *, port=0, **how):
    """A server in a thread of its own."""
    server = Server(folder, port=port, **how)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive(), "the server did not end"
