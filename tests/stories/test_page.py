"""The page, clicked through in a real Chromium and compared with the story that it tells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.story import Story
from slotproof.proofs.faults.catalogue import NAMED
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.stories.page import page, write_page
from slotproof.proofs.stories.telling import tell, tell_reached
from slotproof.proofs.stories.told import Broken, Rule, Shown, Told

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
]
WIDTHS = (380, 1400)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")


@pytest.fixture(scope="module", params=["count_idle_hits", "release_processed_only", "reached", "dropped"])
def told(request: pytest.FixtureRequest, stories: dict[str, Story], dropped: Story) -> Told:
    if request.param == "reached":
        story = stories["free_unreferenced_only"]
        return tell_reached(story.config, story.calls, "hits > 0 and held < 2")
    if request.param == "dropped":
        return tell(dropped, Rules())
    return tell(stories[request.param], NAMED[request.param].bent)


class Browser:
    """A page in a headless Chromium, spoken to through a pipe in its DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        # Chromium reads commands from descriptor 3 and answers on 4: here the pipes of 0 and 1.
        through = 'exec "$@" 3<&0 4>&1 0</dev/null 1>&2'
        command = ["sh", "-c", through, "sh", str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._sent, self._session, self._buffer = 0, "", b""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        assert self._process.stdin is not None
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while b"\0" not in self._buffer:
            chunk = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
            assert chunk, "Chromium has ended"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, url: str, width: int) -> None:
        """Open a page of a width afresh."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=850,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        for address in ("about:blank", url):
            self.events.clear()
            self.send("Page.navigate", url=address)
            while not any(event["method"] == "Page.loadEventFired" for event in self.events):
                self.events.append(self._receive())

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        for kind in ("rawKeyDown", "keyUp"):
            code = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9}[key]
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def click(self, selector: str) -> None:
        """Click into the middle of what a person sees there."""
        place = f"document.querySelector({selector!r})"
        self.run(f"{place}.scrollIntoView({{block: 'nearest', inline: 'center'}})")
        x, y, seen = self.run(
            f"(() => {{ const place = {place}, box = place.getBoundingClientRect();"
            " const x = box.x + box.width / 2, y = box.y + box.height / 2;"
            " return [x, y, place.contains(document.elementFromPoint(x, y))]; })()"
        )
        assert seen, f"{selector} is covered by something else"
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def settle(self) -> None:
        """Let the page hear of a new address."""
        time.sleep(0.05)

    def close(self) -> None:
        try:
            self._session = ""
            self.send("Browser.close")
        finally:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def without_javascript(browser: Browser) -> Iterator[Browser]:
    """Pages' own scripts do not run; what a test asks of the page does."""
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    yield browser
    browser.send("Emulation.setScriptExecutionDisabled", value=False)


@pytest.fixture
def url(told: Told, tmp_path: Path) -> str:
    write_page(tmp_path / "story.html", told)
    return (tmp_path / "story.html").as_uri()


SHOWN = """(() => {
  const all = (root, selector) => [...root.querySelectorAll(selector)];
  const text = (root, selector) => root.querySelector(selector)?.textContent ?? null;
  const part = all(document, ".part").filter(p => p.checkVisibility());
  const read = part => ({
    call: text(part, ".asks"),
    result: text(part, ".result"),
    lines: all(part, ".lines li").map(li => [text(li, ".stage"), text(li, ".text")]),
    blocks: all(part, ".blocks .block").map(b => {
      const key = b.querySelector(".key")?.lastChild.data ?? null;
      return [Number(b.dataset.block), b.dataset.kind, Number(b.dataset.ref), key];
    }),
    names: all(part, ".blocks .number").map(b => b.textContent),
    filled: all(part, ".blocks .block").map(b => [text(b, ".written"), text(b, ".rest")]),
    changed: all(part, ".blocks .changed").map(b => Number(b.dataset.block)),
    queue: all(part, ".queue li[data-block]").map(b => Number(b.dataset.block)),
    requests: all(part, ".request").map(r => ({
      status: text(r, ".status"),
      table: all(r, ".entry[data-block]").map(e => [Number(e.dataset.block), e.dataset.kind]),
      slots: all(r, ".slot").map(s => [s.dataset.kind, s.dataset.draft === "true"]),
      tokens: all(r, ".slot").map(s => s.textContent).join(" ").trim(),
    })),
    ending: text(part, ".ending .reason"),
  });
  return {
    parts: part.map(read),
    live: text(document, "#live"),
    here: all(document, "[aria-current=step]").map(a => Number(a.dataset.step)),
    slider: Number(document.querySelector("#slider").value),
    hash: location.hash,
  };
})()"""


def compare(browser: Browser, told: Told, n: int) -> None:
    """What the page shows at a call is what the story says, and nothing else is shown."""
    seen = browser.run(SHOWN)
    (part,) = seen["parts"]
    compare_part(part, told, n)
    assert (seen["slider"], seen["hash"], seen["here"]) == (n, f"#{n}", [n])
    if n == 0:
        assert "Before the first call" in seen["live"]
        return
    step = told.steps[n - 1]
    for word in (f"Call {n} of {len(told.steps)}", step.call, step.result, step.decided.text):
        assert word in seen["live"]
    assert n < len(told.steps) or ending(told) in seen["live"]


def ending(told: Told) -> str:
    return told.broken.reason if told.broken else told.reached


def compare_part(part: dict[str, Any], told: Told, n: int) -> None:
    """A part of the page shows what the story says of a call, or of its start."""
    state = told.steps[n - 1].state if n else told.initial
    assert part["blocks"] == [[b.block, b.kind, b.ref_cnt, b.key] for b in state.blocks]
    assert part["names"] == ["null", *(f"b{b.block}" for b in state.blocks[1:])]
    assert part["filled"] == [
        [
            None if b.written is None else f"written {b.written}/{b.slots}",
            f"{b.filled_by} writes the rest" if b.filled_by else None,
        ]
        for b in state.blocks
    ]
    assert part["queue"] == list(state.free_queue)
    assert [r["status"] for r in part["requests"]] == [r.status for r in state.requests]
    for shown, request in zip(part["requests"], state.requests, strict=True):
        assert shown["table"] == [[e.block, e.kind] for table in request.tables for e in table.entries]
        spans = [span for table in request.tables for span in table.spans]
        slots = [[span.kind, span.draft] for span in spans for _ in range(span.end - span.start)]
        assert shown["slots"] == slots
        final = " ".join(map(str, request.tokens)) if spans else ""
        assert shown["tokens"].startswith(final)
    assert part["ending"] == (ending(told) if n == len(told.steps) else None)
    if n:
        step = told.steps[n - 1]
        assert (part["call"], part["result"]) == (step.call, step.result)
        assert part["lines"] == [[line.stage, line.text] for line in step.lines]
        assert part["changed"] == changed_blocks(told.before(step), state)


def changed_blocks(before: Shown, after: Shown) -> list[int]:
    return [
        b.block
        for a, b in zip(before.blocks, after.blocks, strict=True)
        if (a.kind, a.ref_cnt, a.key) != (b.kind, b.ref_cnt, b.key)
        or (b.written is not None and a.filling != b.filling)
    ]


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
def test_every_call_shows_what_the_story_says(browser: Browser, told: Told, url: str, width: int) -> None:
    browser.open(url, width)
    compare(browser, told, 0)
    for n in range(1, len(told.steps) + 1):
        browser.click("#on")
        compare(browser, told, n)
    for n in reversed(range(len(told.steps))):
        browser.press("ArrowLeft")
        compare(browser, told, n)
    browser.press("End")
    compare(browser, told, len(told.steps))
    browser.press("Home")
    browser.press("ArrowRight")
    compare(browser, told, 1)
    browser.click("[data-step='2']")
    browser.settle()
    compare(browser, told, 2)
    browser.run("slider.value = 3; slider.dispatchEvent(new Event('input'))")
    compare(browser, told, 3)


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off_or_fetched(browser: Browser, told: Told, url: str, width: int) -> None:
    browser.open(f"{url}#{len(told.steps)}", width)
    compare(browser, told, len(told.steps))
    assert browser.run("document.documentElement.scrollWidth") <= width
    small = (
        "[...document.querySelectorAll('button')].filter(b => b.getBoundingClientRect().height < 40).length"
    )
    assert browser.run(small) == 0
    # What lies under the fixed bar of a narrow page can be scrolled free of it.
    browser.run("scrollTo(0, document.documentElement.scrollHeight)")
    free = "document.querySelector('footer').getBoundingClientRect().bottom"
    top = "document.querySelector('nav').getBoundingClientRect().top"
    assert width > 900 or browser.run(f"{free} <= {top}")
    asked = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert {address.partition("#")[0] for address in asked} <= {url, "data:,"}
    bad = ("Runtime.exceptionThrown", "Log.entryAdded")
    assert [event for event in browser.events if event["method"] in bad] == []


@needs_chromium
def test_a_block_that_nobody_writes_is_seen_wherever_it_is(
    browser: Browser, dropped: Story, tmp_path: Path
) -> None:
    write_page(tmp_path / "story.html", tell(dropped, Rules()))
    marked = "[...document.querySelectorAll('[data-rest=nobody]')].filter(e => e.checkVisibility())"
    of = f"{marked}.map(e => [e.closest('ul, ol, .requests').className, Number(e.dataset.block)])"
    browser.open(f"{(tmp_path / 'story.html').as_uri()}#5", 1400)
    assert browser.run(of) == []
    browser.press("ArrowRight")
    assert browser.run(of) == [["blocks", 3], ["queue", 3]]
    browser.press("ArrowRight")
    assert browser.run(of) == [["blocks", 3], ["requests", 3]]
    assert len(browser.run(f"[...new Set({marked}.map(e => getComputedStyle(e).borderColor))]")) == 1


@needs_chromium
def test_a_link_opens_at_its_call(browser: Browser, told: Told, url: str) -> None:
    for link, n in (("#2", 2), ("#999", len(told.steps)), ("#words", 0)):
        browser.open(url + link, 1400)
        compare(browser, told, n)
    browser.run("location.hash = '#1'")
    browser.settle()
    compare(browser, told, 1)


@needs_chromium
def test_the_keyboard_reaches_everything_in_order(browser: Browser, told: Told, url: str) -> None:
    browser.open(f"{url}#1", 1400)
    order, issues = [], browser.run("[...document.querySelectorAll('header a')].map(a => a.href)")
    for _ in range(len(issues) + 4):
        browser.press("Tab")
        focused = "(e => e.id || e.dataset.step || e.href)(document.activeElement)"
        order.append(browser.run(focused))
    assert order == [*issues, "back", "slider", "on", "0"]
    browser.run("slider.focus()")
    browser.press("ArrowRight")
    compare(browser, told, 2)


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(browser: Browser, told: Told, url: str, scheme: str) -> None:
    """WCAG AA: a contrast of 4.5 between every text and what is behind it."""
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    for n in range(1, len(told.steps) + 1):
        browser.open(f"{url}#{n}", 1400)
        assert browser.run(CONTRAST) == []


CONTRAST = """(() => {
  const rgba = c => { const v = c.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v; };
  const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => [.2126, .7152, .0722].reduce((sum, part, i) => sum + part * linear(c[i] / 255), 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = rgba(getComputedStyle(e).backgroundColor);
      if (c[3] === 1) return c;
    }
  };
  const faint = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(c => c.nodeType === 3 && c.data.trim());
    if (!own || !e.checkVisibility() || e.closest(".unseen, script, noscript, :disabled, .gone")) continue;
    const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) faint.push(`${e.className || e.id || e.tagName} ${e.textContent} ${ratio.toFixed(2)}`);
  }
  return faint;
})()"""


HOSTILE = "</script><script>document.title = 'taken'</script>\u2028<!-- & \"'"


def hostile(told: Told) -> Told:
    return msgspec.structs.replace(
        told,
        off=(Rule(HOSTILE, HOSTILE, HOSTILE),),
        broken=Broken(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, (), ()),
    )


def test_no_text_of_a_story_is_markup(told: Told) -> None:
    text = page(hostile(told), HOSTILE)
    assert "<!--" not in text
    assert text.count("<script") == text.count("</script") == 1


def test_issues_are_links(stories: dict[str, Story]) -> None:
    fault = NAMED["check_before_commit"]
    text = page(tell(stories[fault.name], fault.bent))
    assert "vllm#11562" not in re.sub(r"<a [^>]*>vllm#\d+</a>", "", text)
    for issue in fault.issues:
        assert f'<a href="https://github.com/vllm-project/vllm/issues/{issue}">vllm#{issue}</a>' in text


@needs_chromium
def test_the_start_says_what_the_story_is_about(
    browser: Browser, told: Told, stories: dict[str, Story], tmp_path: Path
) -> None:
    write_page(tmp_path / "story.html", told, "slotproof explore --html story.html")
    browser.open((tmp_path / "story.html").as_uri(), 1400)
    about = browser.run("document.querySelector('.part .call').innerText")
    for said in (told.about, told.allowed, told.reached, told.broken.text if told.broken else ""):
        assert said in about
    assert "slotproof explore --html story.html" in browser.run("document.body.innerText")


@needs_chromium
@pytest.mark.parametrize("width", WIDTHS)
def test_without_javascript_the_whole_story_is_there(
    without_javascript: Browser, told: Told, url: str, width: int
) -> None:
    browser = without_javascript
    browser.open(url, width)
    seen = browser.run(SHOWN)
    assert len(seen["parts"]) == len(told.steps) + 1
    for n, part in enumerate(seen["parts"]):
        compare_part(part, told, n)
    assert browser.run("document.querySelector('#slider').checkVisibility()") is False
    assert browser.run("document.documentElement.scrollWidth") <= width
    browser.click("[data-step='2']")
    browser.settle()
    top = browser.run("document.querySelectorAll('.part')[2].getBoundingClientRect().top")
    assert abs(top) < 2


@needs_chromium
def test_what_a_story_says_is_shown_as_text(browser: Browser, told: Told, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    write_page(path, hostile(told), HOSTILE)
    browser.open(f"{path.as_uri()}#{len(told.steps)}", 1400)
    assert browser.run("document.querySelector('.reason').textContent") == HOSTILE
    assert browser.run("document.querySelector('.command code').textContent") == HOSTILE
    assert browser.run("document.querySelector('.part:last-child').dataset.summary").count(HOSTILE) == 2
    assert browser.run("document.title") != "taken"


def test_a_page_that_cannot_be_written_is_one_clear_line(told: Told, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no-such-folder"):
        write_page(tmp_path / "no-such-folder" / "story.html", told)
