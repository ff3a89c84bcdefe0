"""`trikubelet ui`: the pods of an agent on a terminal, live.

The story: `feed` follows the agent's journal over its socket, and tells `model` each entry. The model has a
`timeline` of the stages of each pod, and notes to which pods something happened; `feed` asks for their objects.
`screen` draws the whole as lines of text; it knows no terminal. `app` shows them with urwid, on Trio's loop, and does
what keys ask for.

`timeline`, `model` and `screen` are pure. Only `app` and `text_view` import urwid.

Everything that comes from the agent may be hostile: names, messages and logs are shown by `text.plain` alone, which
leaves nothing in them that moves a terminal's cursor.
"""
