"""The page in a real browser: Chromium, if it is installed."""

import json
import shutil

import pytest

from report.pages import ASK, made

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    pytest.skip(
        "needs Chromium and its driver (chromium, chromium-driver)", allow_module_level=True
    )
webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
pytest.importorskip("vl_convert", reason="needs due[report]")

from selenium.webdriver.chrome.service import Service  # noqa: E402

from due.report.page import render  # noqa: E402

ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
CONTRAST = """
const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
const light = (c) => {
  const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const [r, g, b] = rgb(c).map((v) => linear(v / 255));
  return .2126 * r + .7152 * g + .0722 * b;
};
const back = (e) => {
  for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor;
    if (c !== "rgba(0, 0, 0, 0)") return c;
  }
  return "rgb(255, 255, 255)";
};
const texts = "h1, h2, p, li, dt, dd, td, th, a, summary, figcaption, svg text";
return [...document.querySelectorAll(texts)]
  .filter((e) => e.checkVisibility())
  .map((e) => {
    const own = e instanceof SVGElement ? getComputedStyle(e).fill : getComputedStyle(e).color;
    const [a, b] = [light(own), light(back(e.closest("svg") || e))].sort((x, y) => y - x);
    return [(a + .05) / (b + .05), e.tagName, e.textContent.slice(0, 30)];
  }).sort((x, y) => x[0] - y[0])[0];
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module", params=list(ASK))
def opened(request, browser, tmp_path_factory):
    """The page of each task, open; and what the browser said and asked for on the way."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(*made(request.param)), encoding="utf-8")
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)  # what came before
    browser.get(path.as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach((d) => d.open = true)")
    return browser, browser.get_log("browser"), browser.get_log("performance"), path.as_uri()


def show(browser, width, scheme="light", media="screen"):
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = [{"name": "prefers-color-scheme", "value": scheme}]
    given = {"media": media, "features": feature}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", given)


def test_no_errors_and_no_requests(opened):
    _, said, network, address = opened
    assert said == []
    events = [json.loads(entry["message"])["message"] for entry in network]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith("data:")} <= {address}


def test_a_script_of_a_name_does_not_run_and_the_policy_holds(opened):
    browser = opened[0]
    assert browser.title.startswith("Report: <script>alert(1)</script>")
    assert browser.execute_script("return document.scripts.length") == 1
    blocked = browser.execute_async_script(
        "const done = arguments[0];"
        "fetch('http://localhost:1/').then(() => done(false), () => done(true))"
    )
    assert blocked is True
    assert any(
        "Content Security Policy" in entry["message"] for entry in browser.get_log("browser")
    )


def test_landmarks_and_headings_are_there(opened):
    browser = opened[0]
    count = "return document.querySelectorAll(arguments[0]).length"
    for selector in ("header", "nav[aria-label]", "main", "footer", "h1", "a.skip[href='#main']"):
        assert browser.execute_script(count, selector) == 1, selector
    assert browser.execute_script(count, "main section[aria-labelledby]") >= 8
    assert browser.execute_script(count, "svg:not([aria-label])") == 0
    assert browser.execute_script(count, "figure:not(:has(table))") == 0
    assert browser.execute_script(count, "table:not(:has(caption))") == 0


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_scrolls_sideways(opened, width):
    browser = opened[0]
    show(browser, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("look", [("light", "screen"), ("dark", "screen"), ("dark", "print")])
def test_texts_stand_out_from_their_ground(opened, look):
    browser = opened[0]
    show(browser, 1280, *look)
    ratio, *where = browser.execute_script(CONTRAST)
    assert ratio >= 4.5, where


def test_values_are_shown_on_hover_and_by_keys(opened):
    browser = opened[0]
    show(browser, 1280)
    tip = "const t = document.getElementById('tip'); return t.hidden ? null : t.textContent"
    assert browser.execute_script(tip) is None
    browser.execute_script(
        "document.querySelector('.value').dispatchEvent(new PointerEvent('pointerenter'))"
    )
    first = browser.execute_script(tip)
    assert first
    press = (
        "const s = document.querySelector('figure svg'); s.focus({preventScroll: true});"
        "s.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}))"
    )
    browser.execute_script(press, "ArrowRight")
    second = browser.execute_script(tip)
    assert second and second != first
    browser.execute_script(press, "ArrowLeft")
    assert browser.execute_script(tip) == first
    browser.execute_script(press, "Escape")
    assert browser.execute_script(tip) is None
