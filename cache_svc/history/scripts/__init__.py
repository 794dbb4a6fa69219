"""The Lua scripts of the history: whatever must be seen or written together. A file for each thing that they are about.

Turns form a tree: each names the turn that its prompt ended with (its parent). A conversation is a tree too, with an
order of those turns that belong to it; two writers at once give two turns the same parent, and the order has both.
Parts of a turn in the hash `turns`, by letter: `a:` attempt and parent ("2 resp_...", "-" for none; "~" before a parent
that does not count this turn as a child), `s:` said, `m:` meta, `i:` token ids, `k:` number of children, `d:` deleted;
what `p:`, `n:` and `q:` are stands in `pictures`.
What a mark in `pending` says stands in `mark`. All scripts may run twice with the same arguments.
"""
