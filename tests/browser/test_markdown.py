"""Markdown of the model: rendered, harmless, and cheap to grow."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.live_ring import LiveRing, spoken

ATTACKS = """\
<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2">
<svg><script>window.hacked = 3</script></svg>
<iframe srcdoc="<script>parent.hacked = 4</script>"></iframe>

Inline <b onmouseover="window.hacked = 5">bold</b> and <style>body { display: none }</style>

[click](javascript:window.hacked=6) [data](data:text/html,<script>window.hacked=7</script>)
[break"onclick="window.hacked=8](https://example.com/"onmouseover="window.hacked=9)
![image](https://example.com/pixel.png) ![x](x"onerror="window.hacked=10)

```"><script>window.hacked=11</script>
</code></pre><script>window.hacked = 12</script>
```

<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.hacked=13&gt;">
<form action="/v1/conversations"><input name=attributes></form><a id=byId href=#>x</a>
"""


def test_html_from_the_model_is_shown_as_text_and_never_runs(ring: LiveRing, chat: ChatPage) -> None:
    requested: list[str] = []
    chat.page.on("request", lambda request: requested.append(request.url))
    ring.play(*spoken(ATTACKS))
    chat.ask("Attack")
    for link in chat.answer.get_by_role("link").all():
        assert (link.get_attribute("href") or "").startswith("https://")
        link.hover()
    chat.page.reload()
    expect(chat.answer).to_contain_text("<script>window.hacked = 1</script>")
    assert chat.page.evaluate("() => window.hacked") is None
    foreign = "script, img, iframe, style, form, input, math, table, [onclick], [onerror], [onmouseover], [id], [style]"
    expect(chat.answer.locator(foreign)).to_have_count(0)
    assert [url for url in requested if not url.startswith(ring.url)] == []


def test_the_policy_alone_would_stop_a_script_that_came_through(chat: ChatPage) -> None:
    refused = """() => {
        const script = document.createElement("script");
        try { script.text = "window.hacked = 1"; document.body.append(script); } catch (error) { return error.name; }
        return window.hacked === undefined ? "silent" : "ran";
    }"""
    assert chat.page.evaluate(refused) == "TypeError"
    chat.faults.clear()  # the browser reports what it refused


@pytest.mark.parametrize("mark", ["> ", "- ", ">", "1. "])
def test_quotes_and_lists_nested_without_end_are_shown_as_text_without_parsing(chat: ChatPage, mark: str) -> None:
    """Parsing them costs the square of their depth, and in the end the parser's stack."""
    shown, parsed = chat.call("growing_text", _COUNTED, mark * 20_000 + "deep")
    assert "deep" in shown
    assert parsed == 0


def test_text_that_breaks_the_parser_is_shown_as_text(chat: ChatPage) -> None:
    broken = "marked.Lexer.prototype.lex = () => { throw new RangeError('stack'); };"
    shown, _ = chat.call("growing_text", _COUNTED.replace("/* broken */", broken), "# <b>deep</b>")
    assert '<p class="unformatted"># &lt;b&gt;deep&lt;/b&gt;</p>' in shown


def test_tasks_have_one_box_each_and_quotes_in_quotes_are_not_pushed_away(ring: LiveRing, chat: ChatPage) -> None:
    ring.play(*spoken("- [ ] open\n- [x] done\n- plain\n\n> one\n>\n> > two"))
    chat.ask("Tasks")
    kinds = chat.page.eval_on_selector_all(
        ".answer-text li", "nodes => nodes.map((node) => getComputedStyle(node).listStyleType)"
    )
    assert kinds == ["none", "none", "disc"]
    expect(chat.answer.locator("blockquote blockquote")).to_have_css("margin-left", "0px")


def test_code_keeps_its_text_and_can_be_copied(ring: LiveRing, chat: ChatPage) -> None:
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code = "def f(x):\n    return x < 2 and `x`\n\n# end"
    ring.play(*spoken(f"Here:\n\n```python\n{code}\n```\n\nDone."))
    chat.ask("Code")
    expect(chat.answer.locator("figcaption")).to_contain_text("python")
    with chat.soon_shown("Copied"):
        chat.button("Copy code").click()
    assert chat.page.evaluate("() => navigator.clipboard.readText()") == code


def test_earlier_blocks_keep_their_nodes_while_the_answer_grows(ring: LiveRing, chat: ChatPage) -> None:
    gate = ring.gate()
    early, late = "# Title\n\nFirst.\n\n- a\n- b\n\nSecond.\n\n", "Third.\n\n```\ncode\n```\n\nFourth."
    ring.play(*spoken(early), *spoken(late, after=gate))
    chat.send("Write")
    expect(chat.answer).to_contain_text("Second.")
    chat.answer.locator("h1").evaluate("node => { node.marked = true; window.parsed = 0; }")
    ring.open(gate)
    chat.until_done()
    expect(chat.answer).to_contain_text("Fourth.")
    assert chat.answer.locator("h1").evaluate("node => node.marked")


def test_an_open_block_that_did_not_change_keeps_its_node(chat: ChatPage) -> None:
    kept = """
        const text = new m.GrowingText(document.createElement('div'));
        text.append('- a\\n- b\\n\\nThe last');
        await new Promise(requestAnimationFrame);
        const list = text.root.querySelector('ul');
        text.append(' block grows');
        text.finish();
        return text.root.textContent.includes('grows') && text.root.querySelector('ul') === list;
    """
    assert chat.call("growing_text", kept)


def test_a_long_answer_costs_no_more_per_token_at_its_end(chat: ChatPage) -> None:
    """Counts the characters that are parsed again, not the time: 200 paragraphs must not be read 200 times."""
    text = "".join(f"Paragraph {number} says something.\n\n" for number in range(200))
    _, parsed = chat.call("growing_text", _COUNTED.replace("1e9", "40"), text)
    assert parsed < 5 * len(text)


_COUNTED = """
    const marked = await import('/vendor/marked.esm.js');
    const root = document.createElement('div');
    const text = new m.GrowingText(root);
    let parsed = 0;
    const lex = marked.Lexer.prototype.lex;
    marked.Lexer.prototype.lex = function (source) { parsed += source.length; return lex.call(this, source); };
    /* broken */
    try {
      for (let at = 0; at < argument.length; at += 1e9) {
        text.append(argument.slice(at, at + 1e9));
        await new Promise(requestAnimationFrame);
      }
      text.finish();
    } finally { marked.Lexer.prototype.lex = lex; }
    return [root.innerHTML, parsed];
"""
_GROW = """
    const [text, size] = argument;
    const root = document.createElement('div');
    const growing = new m.GrowingText(root);
    for (let at = 0; at < text.length; at += size * Math.ceil(text.length / 40 / size)) {
      growing.append(text.slice(at, at + size * Math.ceil(text.length / 40 / size)));
      await new Promise(requestAnimationFrame);
    }
    growing.finish();
    while (root.querySelector('.formula:not([data-state])')) await new Promise(requestAnimationFrame);
    const kept = root.innerHTML.replace(/<!---->/g, '').replace(/<div class="chapter"><.div>/g, '');
    return kept.replace(/\\s+/g, ' ').replace(/ </g, '<');
"""
_WHOLE = """
    const text = new m.GrowingText(document.createElement('div'));
    text.replace(argument);
    while (text.root.querySelector('.formula:not([data-state])')) await new Promise(requestAnimationFrame);
    return text.root.innerHTML.replace(/\\s+/g, ' ').replace(/ </g, '<');
"""

PIECES = st.sampled_from(
    [
        *("word ", "\n", "\n\n", "# head\n", "- item\n", "  - nested\n", "1. one\n", "2", ". two\n", "> quote\n"),
        *("```js\n", "```\n", "~~~\n", "`x` ", "**b** ", "| a | b |\n|---|--:|\n", "| 1 | 2 |\n", "---\n", "===\n"),
        *("$$\n", "$x$ ", "\\(y", "\\) ", "\\[\n", "\\]\n", "$$z$$\n", "$"),
        *("<b>x</b>", "[l](http://x.y) ", "[r]\n", "\n[r]: http://r.y\n", "    indented\n", "- [x] done\n", "\r\n"),
    ]
)


@pytest.fixture
def blank(chat: ChatPage) -> ChatPage:
    """The page, used for its modules."""
    return chat


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES, max_size=25).map("".join), st.integers(1, 7))
def test_text_that_grew_reads_like_text_that_came_whole(blank: ChatPage, text: str, size: int) -> None:
    grown = blank.call("growing_text", _GROW, [text, size])
    whole = blank.call("growing_text", _WHOLE, text)
    assert grown == whole  # but for white space
