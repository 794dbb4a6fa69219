"""LaTeX of the model is drawn as MathML; what is none, or not wanted, stays as it was written."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chat_page import ChatPage
from tests.browser.conftest import OpenPage
from tests.browser.live_ring import LiveRing, spoken

# Markdown, and the formulas in it.
FORMULAS = {
    "It is $a_1 * b_1$ and $c_1 * d_1$.": ["$a_1 * b_1$", "$c_1 * d_1$"],
    "The $n$th of $\\{1, 2\\}$, or \\(a<b\\) or $O(n \\log n)$.": [
        "$n$",
        "$\\{1, 2\\}$",
        "\\(a<b\\)",
        "$O(n \\log n)$",
    ],
    "It costs $\\$5 + x$.": ["$\\$5 + x$"],
    "So\n$$\nx\n- y\n= z\n$$\nfollows.": ["$$\nx\n- y\n= z\n$$"],
    "\\[ x^{*} \\\\[2pt] y \\]\n\n1. One:\n   \\[\n   a\n   + b\n   \\]\n2. $$c$$": [
        "\\[ x^{*} \\\\[2pt] y \\]",
        "\\[\na\n+ b\n\\]",
        "$$c$$",
    ],
    "\\begin{align*}\na &= b \\\\\n- c &= d\n\\end{align*}": ["\\begin{align*}\na &= b \\\\\n- c &= d\n\\end{align*}"],
    "> Quoted $x$.\n\n| a |\n|---|\n| **$y$** |": ["$x$", "$y$"],
    "It costs $5 and **$10**, $5-$10, $5/month or 10$, US$5, R$ 5 or 5$ (not 10$).": [],
    "From $$ to $$$, ($$) or $$$, $$ to eat $$ again": [],
    "We have $$ x = 1 $$, $$y$$.": ["$$ x = 1 $$", "$$y$$"],
    "Set $HOME and $PATH, $HOME/$USER, ${x}, $(pwd) or $HOME and PATH$.": [],
    "Code `$x$`, ``\\(y\\)`` and \\$5 to \\$10, a $ alone, $$ and $ $.": [],
    "```sh\necho $A $B $$x$$ \\(y\\)\n```\n\n    $x$\n": [],
    "\\[ not closed\n\nA paragraph, \\(half\n\nanother one $$ with\n\nothers. \\]": [],
    "$$\nnot closed\n\nA paragraph.\n\n$$\n\n\\[\nx\n\ny\n\\]": [],
    "$$" + "x" * 5_000 + "$$": [],
}
SOURCES = """
    const root = document.createElement('div');
    root.append(m.render(m.blocksOf(argument)));
    return [...root.querySelectorAll('.formula')].map((formula) => formula.dataset.source);
"""


def test_formulas_are_told_from_prices_variables_and_code(chat: ChatPage) -> None:
    for text, formulas in FORMULAS.items():
        assert chat.call("markdown", SOURCES, text) == formulas, text


def test_formulas_are_drawn_and_read_as_maths(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("It is $a_1 * b_1$.\n\n$$\n\\frac{1}{2}\n- x\n$$\n\n\\[ \\textcolor{red}{y} \\]"), per_chunk=64)
    chat.ask("Formulas")
    maths = chat.answer.get_by_role("math")
    expect(maths).to_have_count(3)
    expect(maths.nth(0).locator("msub")).to_have_count(2)
    expect(maths.nth(1).locator("mfrac")).to_be_visible()
    assert [math.get_attribute("display") for math in maths.all()] == [None, "block", "block"]
    expect(chat.answer.locator("em, ul")).to_have_count(0)
    expect(chat.answer).not_to_contain_text("$", use_inner_text=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_coloured_formulas_can_be_read_on_light_and_dark(ring: LiveRing, open_page: OpenPage, scheme: str) -> None:
    chat = open_page(ring.url, color_scheme=scheme)
    ring.play(
        *spoken("$\\color{blue} x$ $\\textcolor{yellow}{x}$ $\\colorbox{yellow}{x}$ $\\rule{1em}{1em}$"), per_chunk=64
    )
    chat.ask("Colours")
    expect(chat.answer.locator("math")).to_have_count(4)
    ratios = chat.page.evaluate(CONTRASTS)
    assert len(ratios) == 4 and min(ratios) > 3, ratios


# Contrast as WCAG 2 has it, of each formula's ink (or rule) with its ground (or the page's).
CONTRASTS = """() => {
    const brush = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const light = (colour) => {
        brush.fillStyle = colour;
        brush.fillRect(0, 0, 1, 1);
        const linear = [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3)
            .map((value) => (value <= 10 ? value / 3295 : ((value / 255 + 0.055) / 1.055) ** 2.4));
        return linear[0] * 0.2126 + linear[1] * 0.7152 + linear[2] * 0.0722;
    };
    const page = getComputedStyle(document.documentElement).backgroundColor;
    return [...document.querySelectorAll(".answer-text math")].map((math) => {
        const leaf = math.querySelector("mi, mtext, mspace");
        const ground = getComputedStyle(leaf.closest("[mathbackground]") ?? document.documentElement).backgroundColor;
        const pair = leaf.localName === "mspace" ? [ground, page] : [getComputedStyle(leaf).color, ground];
        const [dark, bright] = pair.map(light).sort((a, b) => a - b);
        return (bright + 0.05) / (dark + 0.05);
    });
}"""


BROKEN = ("$\\frac{1}{$", "$\\nosuch{x}$", "$" + "_" * 100 + "$", "$a & b$")
HOSTILE = (
    "\\href{javascript:window.hacked=1}{x}",
    "\\url{javascript:window.hacked=1}",
    "\\includegraphics{https://example.com/pixel.png}",
    "\\class{said}{x}",
    "\\style{position:fixed;inset:0}{x}",
    "\\data{a=b}{x}",
    "\\def\\a{\\a\\a}\\a",
    "\\gdef\\a{x}\\a",
    "\\newcommand{\\a}{xxxxxxxxxx}\\a",
    "\\left(" * 200 + "x" + "\\right)" * 200,
    "\\sqrt{" * 300 + "x" + "}" * 300,
    "\\begin{matrix}" + "&" * 3_500 + "\\end{matrix}",
)


def test_what_is_no_latex_or_not_wanted_stays_as_it_was_written(chat: ChatPage) -> None:
    requested: list[str] = []
    chat.page.on("request", lambda request: requested.append(request.url))
    for source in [*BROKEN, *(f"$${latex}$$" for latex in HOSTILE)]:
        text, states, elements = _drawn(chat, source)
        assert (text, states, elements) == (source, ["source"], ["p", "span"])
    assert chat.page.evaluate("() => window.hacked") is None
    assert [url for url in requested if not url.startswith(chat.url)] == []


def test_a_drawing_holds_nothing_but_maths_and_no_larger_than_a_page(chat: ChatPage) -> None:
    html = "\\text{<img src=x onerror=window.hacked=1><style>*{display:none}</style>}"
    _, states, elements = _drawn(chat, f"${html} \\rule{{9999em}}{{9999em}} \\kern-9999em y \\llap{{z}} \\pmb{{z}}$")
    assert states == ["drawn"]
    assert set(elements) <= {"p", "span", "math", "mrow", "mtext", "mspace", "mpadded", "mphantom", "mi", "mstyle"}
    wide = "() => [...window.drawn.querySelectorAll('mspace[width]')].map((space) => space.getAttribute('width'))"
    assert "40em" in chat.page.evaluate(wide)
    assert chat.page.evaluate("() => window.hacked") is None


def test_nothing_but_maths_would_come_through_from_a_library_that_was_fooled(chat: ChatPage) -> None:
    markup = """<math href="javascript:window.hacked=1"><mtext><img src=x onerror="window.hacked=2"></mtext>
        <mi onclick="window.hacked=3" style="position:fixed;color:red" id="send">x</mi><script>window.hacked=4</script>
        <maction actiontype="statusline"><mi>y</mi></maction><annotation-xml encoding="text/html"><iframe></iframe>
        </annotation-xml><a href="https://example.com">z</a></math>"""
    fooled = "const { default: temml } = await import('/vendor/temml.mjs'); temml.renderToString = () => argument;"
    chat.call("growing_text", fooled, markup)
    _, states, elements = _drawn(chat, "$x$")
    assert states == ["drawn"]
    assert set(elements) <= {"p", "span", "math", "mtext", "mi"}
    style = "() => window.drawn.querySelector('mi').getAttribute('style')"
    assert chat.page.evaluate(style) == "color: color-mix(in srgb, red 50%, var(--ink));"
    odd = "() => window.drawn.querySelectorAll('[href], [onclick], [id], [onerror]').length"
    assert chat.page.evaluate(odd) == 0
    assert chat.page.evaluate("() => window.hacked") is None
    chat.faults.clear()  # the browser reports what it refused


def _drawn(chat: ChatPage, source: str) -> tuple[str, list[str], list[str]]:
    """Show this answer and return its text, what became of its formulas, and the elements in it."""
    drawn: tuple[str, list[str], list[str]] = tuple(chat.call("growing_text", _DRAW, source))
    return drawn


_DRAW = """
    const root = window.drawn = document.createElement('div');
    new m.GrowingText(root).replace(argument);
    while (root.querySelector('.formula:not([data-state])')) await new Promise(requestAnimationFrame);
    const names = [...root.querySelectorAll('p, p *')].map((node) => node.localName);
    return [root.textContent.trim(), [...root.querySelectorAll('.formula')].map((node) => node.dataset.state), names];
"""


def test_a_formula_that_is_drawn_stays_while_its_answer_grows(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("- so $x^2$ and"), *spoken(" $y^2$ *more*\n- then $z$", after=gate))
    chat.send("Formulas")
    expect(chat.answer.locator("math")).to_have_count(1)
    chat.answer.locator("math").evaluate("(math) => (math.isOld = true)")
    ring.open(gate)
    chat.until_done()
    expect(chat.answer.locator("math")).to_have_count(3)
    old = chat.answer.locator("math").evaluate_all("(maths) => maths.map((math) => Boolean(math.isOld))")
    assert old == [True, False, False]


@pytest.mark.parametrize(
    ("before", "open_part", "closing"),
    [
        ("", "$$\nx*y*z\n- \\{ a_1", "\n$$"),
        ("", "\\[\nx*y*z\n- \\{ a_1", "\n\\]"),
        ("It *is* ", "\\(x*y*z \\{ a_1", "\\)"),
    ],
)
def test_an_open_formula_shows_its_source_until_it_closes(
    ring: LiveRing, chat: ChatPage, before: str, open_part: str, closing: str
) -> None:
    gate = ring.gate()
    ring.play(*spoken(before + open_part), *spoken(f" \\}}{closing}\n\nEnd.", after=gate))
    chat.send("Formula")
    expect(chat.answer.locator(".formula.open")).to_have_text(open_part)
    expect(chat.answer.locator("em")).to_have_count(before.count("is"))
    expect(chat.answer.locator("li, math")).to_have_count(0)
    ring.open(gate)
    chat.until_done()
    expect(chat.answer.locator("math")).to_have_count(1)
    expect(chat.answer.locator("li, .open")).to_have_count(0)


def test_a_formula_that_never_closes_takes_nothing_of_the_rest(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    ring.play(*spoken("$$\nx *y* z\n\nNext **bold** \\( and\n\n"), *spoken("- item *last*, \\[ *open*", after=gate))
    chat.send("Formula")
    expect(chat.answer.locator("strong")).to_have_text("bold")
    expect(chat.answer.locator("em")).to_have_text("y")
    ring.open(gate)
    chat.until_done()
    expect(chat.answer.locator("em")).to_have_text(["y", "last", "open"])
    expect(chat.answer.locator(".formula")).to_have_count(0)


def test_what_is_copied_is_the_source(ring: LiveRing, chat: ChatPage) -> None:
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "It is $x^2$.\n\n$$\\frac{1}{2}$$\n\nEnd."
    ring.play(*spoken(text))
    chat.ask("Formulas")
    expect(chat.answer.locator("math")).to_have_count(2)
    with chat.soon_shown("Copied"):
        chat.button("Copy answer").click()
    assert _clipboard(chat.page) == text
    chat.answer.evaluate("(answer) => getSelection().selectAllChildren(answer)")
    chat.page.keyboard.press("Control+c")
    assert _clipboard(chat.page) == text
    expect(chat.answer.locator("math").first).to_be_visible()


def _clipboard(page: Page) -> str:
    text: str = page.evaluate("() => navigator.clipboard.readText()")
    return text.strip()


def test_the_library_comes_with_the_first_formula_and_is_asked_for_until_it_is_there(
    ring: LiveRing, chat: ChatPage
) -> None:
    requested: list[str] = []
    chat.page.on("request", lambda request: requested.append(request.url))
    chat.page.route("**/temml.mjs", lambda route: route.abort())
    chat.ask("Words")
    assert not [url for url in requested if "temml" in url]
    ring.play(*spoken("It is $x$."))
    with chat.page.expect_event("requestfailed"):
        chat.ask("A formula")
    expect(chat.answer).to_have_text("It is $x$.")
    chat.page.unroute("**/temml.mjs")
    chat.page.evaluate("() => window.dispatchEvent(new Event('online'))")
    expect(chat.answer.locator("math")).to_be_visible()
    chat.faults.clear()  # the library that did not come
