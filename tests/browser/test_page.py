"""The page of a run in a real browser: sorted, searched, pointed at, tapped, printed, without scripts."""

import time

import pytest

from tests.browser.conftest import FINDINGS, MODELS, STATUSES, long_table

SHOWN = "[...document.querySelectorAll(`{0}`)].filter(one => one.getClientRects().length)"
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
    thrown = [one["exceptionDetails"]["text"] for one in browser.named("Runtime.exceptionThrown")]
    return said + thrown + [url for url in asked if not url.startswith(("file:", "data:"))]


@pytest.fixture
def opened(browser, page):
    browser.open(page, WIDE)
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


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_the_page_is_never_wider_than_the_window_and_its_tables_scroll(opened, width):
    opened.resize(width)
    assert opened.run("document.documentElement.scrollWidth <= innerWidth")
    outside = (
        "[...document.querySelectorAll('main *')].filter(one => one.getBoundingClientRect().right > innerWidth + 1"
    )
    assert opened.run(f"{outside} && !one.closest('.scroll')).map(one => one.outerHTML.slice(0, 80))") == []
    # By keys too.
    assert opened.run("[...document.querySelectorAll('.scroll')].every(one => one.tabIndex === 0)")


def test_a_click_on_a_heading_sorts_each_group_by_raw_values(opened):
    opened.click(heading("long", 2))
    assert opened.run("document.querySelector('#long thead th:nth-child(2)').ariaSort") == "ascending"
    rows = "[...document.querySelectorAll('#long tbody')].map(body => [...body.rows].slice(1).map(row => "
    raw = opened.run(f"{rows} Number(row.cells[1].dataset.value)))")
    assert [len(group) for group in raw] == [50, 50, 50]
    assert all(group == sorted(group) for group in raw)
    assert opened.run("[...document.querySelectorAll('#long tbody')].every(one => one.rows[0].matches('.group'))")
    before = raw
    opened.click(heading("long", 2))
    assert opened.run("document.querySelector('#long thead th:nth-child(2)').ariaSort") == "descending"
    assert opened.run(f"{rows} Number(row.cells[1].dataset.value)))") == [group[::-1] for group in before]
    opened.click(heading("long", 1))
    names = opened.run(f"{rows} row.cells[0].innerText))")
    assert names[0][:3] == ["row 0", "row 1", "row 2"], "as numbers, not as texts"
    assert opened.run("document.querySelectorAll('#long th[aria-sort=none]').length") == 8


def test_numbers_are_found_in_what_people_read_and_the_rest_comes_last(opened):
    opened.click(heading("odd", 2))
    assert texts(opened, "#odd tbody th") == ["c", "a", "g", "f", "e", "b", "d"]
    opened.click(heading("odd", 2))
    assert texts(opened, "#odd tbody th") == ["e", "f", "g", "a", "c", "b", "d"]


def test_the_ledger_is_sorted_by_verdict_and_by_value(opened):
    opened.click(heading("claims", 1))
    assert [text[2:] for text in texts(opened, "#claims .badge")] == TESTED, "what was not run is folded"
    opened.click("#claims .all-rows")
    assert [text[2:] for text in texts(opened, "#claims .badge")] == TESTED + ["not run"] * 3
    opened.click(heading("claims", 4))
    numbers = [int(text.split()[2]) for text in texts(opened, "#claims tbody th[scope=row]")]
    assert numbers == [5, 3, 2, 1, 7, 6, 4], "published values fall; what was not run stays apart"


def test_sorting_by_keys(opened):
    opened.run(f"document.querySelector('{heading('odd', 2)}').focus()")
    opened.key("Enter")
    assert texts(opened, "#odd tbody th")[0] == "c"
    opened.key(" ")
    assert texts(opened, "#odd tbody th")[0] == "e"


def test_search_keeps_the_rows_that_have_every_word(opened):
    everything = count(opened, "#memory tbody tr:not(.group)")
    assert everything == len(MODELS) * 8
    opened.write("#search", "W+2D streamed gpt2")
    opened.wait("document.getElementById('found').textContent !== ''")
    assert texts(opened, "#memory tbody tr.group") == ["gpt2-bytes"]
    assert texts(opened, "#memory tbody tr:not(.group) th") == ["w+2d, streamed"]
    assert count(opened, "#odd tbody tr") == 0
    assert count(opened, CLAIMS) == 0
    found = sum(count(opened, f"{box}") for box in ("tbody tr:not(.group)", ".hole"))
    found -= count(opened, ".facts tr") + count(opened, ".prose tbody tr")
    assert opened.run("document.getElementById('found').textContent").startswith(f"{found} of ")
    opened.write("#search", "")
    opened.wait("document.getElementById('found').textContent === ''")
    assert count(opened, "#memory tbody tr:not(.group)") == everything
    assert count(opened, "#memory tbody tr.group") == len(MODELS)


def test_chips_show_claims_by_status(opened):
    opened.click(".chip[data-status='not run']")
    assert count(opened, CLAIMS) == STATUSES.count("not run")
    opened.click(".chip[data-status='inconclusive']")
    assert count(opened, CLAIMS) == STATUSES.count("not run") + 1
    assert count(opened, "#odd tbody tr") == 7, "what has no status stays"
    opened.click(".chip[data-status='not run']")
    opened.click(".chip[data-status='inconclusive']")
    assert count(opened, CLAIMS) == len(TESTED)


def test_long_tables_are_folded(opened):
    assert count(opened, "#long tbody tr:not(.group)") == 60
    assert texts(opened, "#long .all-rows") == ["Show all 150 rows"]
    opened.click("#long .all-rows")
    assert count(opened, "#long tbody tr:not(.group)") == 150
    opened.click("#long .all-rows")
    assert count(opened, "#long tbody tr:not(.group)") == 60


def test_thousands_of_rows_stay_quick(browser, make_page):
    path = make_page(more=(long_table(6000),))
    assert path.stat().st_size < 20 * 2**20
    browser.open(path, WIDE)
    start = time.monotonic()
    browser.click(heading("long", 2))
    browser.write("#search", "m2 999")
    browser.wait("document.getElementById('found').textContent !== ''")
    assert sorted(texts(browser, "#long tbody tr:not(.group) th")) == ["row 4999", "row 5999"]
    assert time.monotonic() - start < 5


def test_the_legend_shows_and_hides_parts_of_the_bars(opened):
    ends = (
        "[...document.querySelectorAll('#figure-memory .panel:not(.off) .row')].map(row => Math.max("
        "...[...row.querySelectorAll('.part')].filter(one => one.style.display !== 'none')"
        ".map(one => one.getBoundingClientRect().right)))"
    )
    before = opened.run(ends)
    residuals = "#figure-memory .panel:not(.off) .part.R"
    shown = count(opened, residuals)
    assert shown > 0
    opened.click("#figure-memory .legend [data-series=R]")
    assert count(opened, residuals) == 0
    after = opened.run(ends)
    assert all(a <= b + 0.01 for a, b in zip(after, before, strict=True)) and sum(after) < sum(before) - 50
    opened.click("#figure-memory .legend [data-series=R]")
    assert count(opened, residuals) == shown and opened.run(ends) == pytest.approx(before, abs=0.5)


def test_the_legend_of_schemes_shows_and_hides_them(opened):
    rows = "#figure-accuracy .row[data-series='w+2d']"
    assert count(opened, rows) > 0
    opened.click("#figure-accuracy .legend [data-series='w+2d']")
    assert count(opened, rows) == 0
    assert count(opened, "#figure-accuracy .row") > 0
    assert (
        opened.run("document.querySelector(\"#figure-accuracy .legend [data-series='w+2d']\").ariaPressed") == "false"
    )


@pytest.mark.parametrize("name", ["memory", "trade-off", "accuracy", "throughput"])
def test_a_figure_shows_one_model_or_all_in_one_view(opened, name):
    panels = f"#figure-{name} .panel"
    assert count(opened, panels) == len(MODELS)
    first = opened.run(f"[...new Set({SHOWN.format(panels)}.map(one => one.dataset.view))]")
    opened.click(f"#figure-{name} .views button:nth-child(2)")
    second = opened.run(f"[...new Set({SHOWN.format(panels)}.map(one => one.dataset.view))]")
    assert len(first) == len(second) == 1 and first != second
    opened.run(
        f"(one => {{ one.value = 'gpt2-bytes'; one.dispatchEvent(new Event('change')) }})"
        f"(document.querySelector('#figure-{name} select'))"
    )
    assert texts(opened, f"{panels} h4") == ["gpt2-bytes"]


def test_pointing_tapping_and_keys_show_exact_values(opened):
    mark = "#figure-memory .panel:not(.off) .row[data-series=baseline]"
    opened.hover(mark)
    assert "MiB" in opened.run("document.getElementById('tip').innerText")
    assert opened.run("document.getElementById('tip').innerText") == opened.run(
        f"document.querySelector('{mark}').ariaLabel"
    )
    opened.hover("h1")
    assert opened.run("document.getElementById('tip').hidden")
    opened.tap("#figure-trade-off .panel:not(.off) .mark .hit")
    assert "memory: " in opened.run("document.getElementById('tip').innerText")
    marks = "document.querySelectorAll('#figure-accuracy .panel:not(.off) .mark')"
    opened.run(f"{marks}[0].focus()")
    opened.key("ArrowDown")
    assert opened.run(f"document.activeElement === {marks}[1]")
    assert opened.run("document.getElementById('tip').innerText") == opened.run(f"{marks}[1].ariaLabel")
    opened.key("Escape")
    assert opened.run("document.getElementById('tip').hidden")
    assert opened.run(f"[...{marks}].filter(one => one.tabIndex === 0).length") == len(MODELS)


def test_commands_are_copied(opened):
    command = opened.run("document.querySelector('.hole pre').innerText")
    opened.click(".hole .copy")
    opened.wait("document.querySelector('.hole .copy').innerText === 'Copied'")
    opened.click("#search")
    opened.call("Input.dispatchKeyEvent", type="keyDown", key="v", commands=["paste"])
    assert opened.run("document.getElementById('search').value") == command


def test_everything_has_a_name_and_the_focus_is_seen(opened):
    nameless = (
        "[...document.querySelectorAll('button, select, input, [role=region], [role=group]')]"
        ".filter(one => !(one.ariaLabel || one.innerText.trim() || one.labels?.length)).map(one => one.outerHTML)"
    )
    assert opened.run(nameless) == []
    opened.run("document.querySelector('#search').focus()")
    opened.key("Tab")
    assert opened.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_printed_it_has_all_rows_and_no_controls(opened):
    opened.click(".chip[data-status='not run']")
    pdf = opened.pdf()
    assert pdf.startswith(b"%PDF")
    # The tags of the PDF: every row of every table, folded and filtered ones and those within details too.
    assert pdf.count(b"/S /TR") == opened.run("document.querySelectorAll('tr').length")
    opened.media("print")
    opened.resize(1040)
    assert count(opened, "input") == count(opened, "select") == count(opened, ".copy") == count(opened, "nav") == 0
    assert count(opened, "#long tbody tr:not(.group)") == 150
    cut = "[...document.querySelectorAll('table')].filter(one => one.getBoundingClientRect().right > innerWidth + 1)"
    assert opened.run(f"{cut}.map(one => one.closest('section').id)") == []


def test_without_scripts_all_is_shown_and_nothing_pretends_to_work(browser, page):
    browser.open(page, PHONE, scripts=False)
    # Where scripts are off the protocol still evaluates.
    assert browser.run("document.documentElement.className") == ""
    assert count(browser, "#long tbody tr:not(.group)") == 150
    assert count(browser, CLAIMS) == len(FINDINGS)
    assert count(browser, ".panel") == browser.run("document.querySelectorAll('.panel').length") > 0
    assert count(browser, ".control") == 0
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert all(browser.run(f"document.querySelector('{one}').getClientRects().length") for one in (".row svg", ".hit"))


def test_what_a_record_says_cannot_run(browser, make_page, page):
    evil = page.with_name("evil.html")
    text = page.read_text().replace(
        "</main>", "<script>document.title = 'taken'</script><img src='x' onerror='x()'></main>"
    )
    evil.write_text(text)
    browser.open(evil)
    assert "taken" not in browser.run("document.title")
    assert count(browser, CLAIMS) == len(TESTED), "ours runs all the same"
