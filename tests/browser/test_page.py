"""The page of a run in a real browser: sorted, searched, pointed at, tapped, printed, without scripts."""

import json
import re

import pytest

from benchmarks.analysis.claims.kinds import load_claims
from tests.browser.conftest import LEDGER, MODELS

SHOWN = "[...document.querySelectorAll(`{0}`)].filter(one => one.checkVisibility())"
WIDE, PHONE = 1400, 390
CLAIMS = "#claims tbody tr:not(.group)"
TESTED = ["reproduced"] * 2 + ["not reproduced", "inconclusive"]


def texts(browser, selector):
    return browser.run(f"{SHOWN.format(selector)}.map(one => one.innerText.trim())")


def count(browser, selector):
    return browser.run(f"{SHOWN.format(selector)}.length")


def heading(table, number):
    return f"#{table} thead th:nth-child({number}) button"


def troubles(browser):
    """What the browser complained of, and what it asked any network for."""
    asked = [one["request"]["url"] for one in browser.named("Network.requestWillBeSent")]
    said = [one["entry"]["text"] for one in browser.named("Log.entryAdded")]
    said += [str(one["args"]) for one in browser.named("Runtime.consoleAPICalled")]
    thrown = [str(one["exceptionDetails"]["exception"]) for one in browser.named("Runtime.exceptionThrown")]
    return said + thrown + [url for url in asked if not url.startswith(("file:", "data:"))]


@pytest.fixture
def opened(browser, page):
    browser.open(page, WIDE)
    browser.wait("document.querySelector('#figure-trade-off[data-ready]') !== null")
    browser.run("document.querySelectorAll('section > details').forEach(one => { one.open = true; })")
    yield browser
    assert troubles(browser) == []


@pytest.mark.parametrize("leave_out", [1, 2, None], ids=["no results", "some", "all"])
def test_a_run_with_any_results_is_shown_without_trouble(browser, make_page, leave_out):
    path = make_page(leave_out)
    for width in (WIDE, PHONE):
        browser.open(path, width)
        assert troubles(browser) == []
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert count(browser, "section") >= 2
    assert count(browser, ".hole") == {1: 30, 2: 15, None: 0}[leave_out] or leave_out is not None
    assert count(browser, ".chart") == {1: 0}.get(leave_out, 4)


def test_headings_sort_each_group_by_raw_values_or_by_the_numbers_that_people_read(opened):
    values = "[...document.querySelectorAll('#memory tbody')].map(body => [...body.rows].slice(1)"
    values += ".map(row => Number(row.cells[3].dataset.value)).filter(isFinite))"
    state = "document.querySelector('#memory thead th:nth-child(4)').ariaSort"
    live(opened, "memory")
    opened.click(heading("memory", 4))
    raw = opened.run(values)
    assert len(raw) == len(MODELS) and min(map(len, raw)) > 5 and opened.run(state) == "ascending"
    assert all(group == sorted(group) for group in raw)
    assert opened.run("[...document.querySelectorAll('#memory tbody')].every(one => one.rows[0].matches('.group'))")
    opened.click(heading("memory", 4))
    assert opened.run(values) == [group[::-1] for group in raw]
    assert opened.run(state) == "descending"
    opened.run(f"document.querySelector('{heading('odd', 2)}').focus()")
    opened.key("Enter")
    assert texts(opened, "#odd tbody th") == ["c", "a", "g", "f", "e", "b", "d"], "what is no number comes last"
    opened.click(heading("claims", 1))
    assert [text[2:] for text in texts(opened, "#claims .badge")] == TESTED, "what was not run is folded"
    opened.click("#claims .all-rows")
    assert [text[2:] for text in texts(opened, "#claims .badge")] == TESTED + ["not run"] * 3


def test_search_keeps_the_rows_that_have_every_word(opened):
    everything = count(opened, "#memory tbody tr:not(.group)")
    assert everything == len(MODELS) * 8
    opened.write("#search", "W+2D streamed gpt2")
    opened.wait("document.getElementById('found').textContent !== ''")
    assert texts(opened, "#memory tbody tr.group") == ["gpt2-bytes"]
    assert texts(opened, "#memory tbody tr:not(.group) th") == ["w+2d, streamed"]
    assert count(opened, "#odd tbody tr") == 0
    assert count(opened, CLAIMS) == 0
    opened.write("#search", "")
    opened.wait("document.getElementById('found').textContent === ''")
    assert count(opened, "#memory tbody tr:not(.group)") == everything
    assert count(opened, "#memory tbody tr.group") == len(MODELS)


def test_the_smoke_runs_page_is_short_begins_with_what_it_shows_and_folds_the_rest(browser, smoke_page):
    browser.open(smoke_page, 1280)
    browser.wait("document.querySelector('#figure-trade-off[data-ready]') !== null")
    for name in ("memory", "accuracy", "throughput"):
        live(browser, name)
    assert browser.run("document.documentElement.scrollHeight") <= 12 * 900
    assert browser.run("document.querySelector('main > section').id") == "trade-off"
    claims = len(load_claims().claims)
    assert browser.run("document.querySelectorAll('#claims tr[id]').length") == claims
    assert count(browser, "#claims tbody tr") < claims, "only those that the run says something of are unfolded"
    commands = texts(browser, "#missing .item pre")
    assert len(set(commands)) == len(commands), "each once"
    browser.click("nav a[href='#fig9a']")
    browser.wait("document.querySelector('#fig9a').open")
    assert count(browser, "#fig9a table") == 1
    assert troubles(browser) == []


def test_legends_and_ticks_fit_a_phone_and_the_smoke_runs_page_few_sheets_of_paper(browser, smoke_page):
    browser.open(smoke_page, 400)
    for name in ("trade-off", "memory", "accuracy", "throughput"):
        for role in ("role-legend-label", "role-axis-label"):
            words = f"[...document.querySelectorAll('{live(browser, name)} .{role} text')]"
            rights = browser.run(f"{words}.map(one => one.getBoundingClientRect().right)")
            assert rights and max(rights) <= 400, (name, role)
    browser.open(smoke_page, WIDE)
    browser.wait("document.querySelector('#figure-trade-off[data-ready]') !== null")
    assert 1 <= len(re.findall(rb"/Type /Page\b", browser.pdf())) < 15


MARK = ".role-mark [aria-label]"
TIP = "document.querySelector('#vg-tooltip-element.visible')?.innerText"


def live(browser, name):
    """Scroll to a figure, and wait until it answers; returns its selector."""
    browser.run(f"document.querySelector('#figure-{name}').scrollIntoView()")
    browser.wait(f"document.querySelector('#figure-{name}[data-ready]') !== null")
    return f"#figure-{name}"


def test_a_figure_shows_one_model_or_all_in_one_view(opened):
    figure = live(opened, "memory")
    marks = f"[...document.querySelectorAll('{figure} {MARK}')]"
    labels = f"{marks}.map(one => one.getBoundingClientRect().left + one.ariaLabel)"
    first = opened.run(labels)
    opened.click(f"{figure} input[type=radio]:not(:checked)")
    opened.wait(
        f"JSON.stringify({labels}) !== {json.dumps(json.dumps(first, separators=(',', ':'), ensure_ascii=False))}"
    )
    opened.run(
        "(one => { one.selectedIndex = [...one.options].findIndex(option => option.text === 'gpt2-bytes');"
        f" one.dispatchEvent(new Event('change')) }})(document.querySelector('{figure} select'))"
    )
    models = f"[...new Set({marks}.map(one => one.ariaLabel.split(',')[0]))]"
    opened.wait(f"{models}.length === 1")
    assert opened.run(models) == ["gpt2-bytes"]


def test_pointing_and_keys_show_exact_values(opened):
    figure = live(opened, "memory")
    opened.hover(f"{figure} {MARK}")
    opened.wait(f"{TIP} !== undefined")
    assert "MiB" in opened.run(TIP)
    assert opened.run(TIP) == opened.run(f"document.querySelector('{figure} {MARK}').ariaLabel")
    opened.hover("h1")
    opened.wait(f"{TIP} === undefined")
    figure = live(opened, "accuracy")
    opened.run(f"document.querySelector('{figure}').focus()")
    marks = f"document.querySelectorAll('{figure} {MARK}')"
    for number in range(2):
        opened.key("ArrowDown")
        assert opened.run(f"document.activeElement === {marks}[{number}]")
        opened.wait(f"{TIP} === {marks}[{number}].ariaLabel")
    opened.key("Escape")
    opened.wait(f"{TIP} === undefined")


def test_commands_are_copied(opened):
    command = opened.run("document.querySelector('.hole pre').innerText")
    opened.click(".hole .copy")
    opened.wait("document.querySelector('.hole .copy').innerText === 'Copied'")
    opened.click("#search")
    opened.call("Input.dispatchKeyEvent", type="keyDown", key="v", commands=["paste"])
    assert opened.run("document.getElementById('search').value") == command


def test_without_scripts_all_is_shown_and_nothing_pretends_to_work(browser, page):
    browser.open(page, PHONE, scripts=False)
    # Where scripts are off the protocol still evaluates.
    assert browser.run("document.documentElement.className") == ""
    assert count(browser, CLAIMS) == len(LEDGER)
    assert count(browser, ".chart") == 4 and count(browser, ".chart .role-mark [aria-label]") > 100
    assert count(browser, ".control") == 0
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def test_what_a_record_says_cannot_run(browser, page):
    evil = page.with_name("evil.html")
    text = page.read_text().replace(
        "</main>", "<script>document.title = 'taken'</script><img src='x' onerror='x()'></main>"
    )
    evil.write_text(text)
    browser.open(evil)
    assert "taken" not in browser.run("document.title")
    assert count(browser, CLAIMS) == len(TESTED), "ours runs all the same"
