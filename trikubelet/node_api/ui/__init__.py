"""A page that shows the pods live: what it consists of, and who may see it.

The story of a look: somebody opens a link with a token that is good for one time (`access.py`), gets a cookie for it,
and the page (`static/`). The page opens one stream of events, which are the lines of the agent's journal, and draws
each pod as a timeline. What it shows of the pod that somebody has chosen, it asks for while it is shown. All of that
comes from the agent's own API, of which it can reach what looks, and nothing that changes something (`pages.py`).

So the page can be served by whoever can ask the agent's API: by the agent itself (`--ui ADDRESS`), and by
`trikubelet web`, which passes on what the agent answers on its socket. As long as nobody looks, it costs a listening
socket.

Names, messages and logs of pods are written by strangers. The page puts them on the screen as text and never as HTML,
and the policy that comes with it has the browser enforce that: no script and no style but those of `static/`.
"""
