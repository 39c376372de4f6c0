"""Where another release of vLLM does otherwise and does no harm: no statement but an order is about it.

A *profile* is the behaviours of one release. The default, none, is vLLM 0.32.0. What breaks a statement is no
behaviour but a rule that is missing (`rules.py`): a gate must report it. An engine's behaviours may name
rules, which are then off: so a gate goes on behind a bug that it has found.
"""

from __future__ import annotations

APPENDS_FULL = "appends-unhashed-full"
APPENDS_WINDOW = "appends-unhashed-window"
APPENDS_UNCACHED = "appends-uncached"
WINDOW_NOT_ZEROED = "window-not-zeroed"
WINDOW_OF_ONE_CACHED = "window-of-one-cached"
GROUPS_CACHE_ALL = "groups-cache-all"
WINDOW_OF_ONE_LOADS = "window-of-one-loads"

BEHAVIOURS = {
    APPENDS_FULL: "full attention's freed blocks go to the tail of the queue, with a hash or without",
    APPENDS_WINDOW: "a window's freed blocks go to the tail of the queue, with a hash or without",
    APPENDS_UNCACHED: "freed blocks go to the tail of the queue where nothing is cached (vllm#48017)",
    WINDOW_NOT_ZEROED: "a window's new blocks are not listed for zeroing",
    WINDOW_OF_ONE_CACHED: "blocks are hashed though a window of one token needs none",
    GROUPS_CACHE_ALL: "with several groups every full block is hashed, also where no hit can end",
    WINDOW_OF_ONE_LOADS: "the first block is a load's even where a window of one needs none of its tokens",
}
"""Every behaviour, with its sentence."""

_BEFORE = {
    (0, 22, 0): (GROUPS_CACHE_ALL,),
    (0, 23, 0): (APPENDS_WINDOW, WINDOW_OF_ONE_CACHED),
    (0, 24, 0): (APPENDS_FULL, WINDOW_OF_ONE_LOADS),
    (0, 28, 0): (WINDOW_NOT_ZEROED,),
}
"""The behaviours that releases before these have."""


BUGS = (APPENDS_UNCACHED,)
"""Those that were mended as bugs: no profile has them, and a gate reports them."""


def profile(release: str) -> tuple[str, ...]:
    """The behaviours of a release of vLLM, such as `0.23.0`; of what is no release number, the newest's."""
    parts = release.split("+")[0].split(".")[:3]
    if not all(part.isdecimal() for part in parts):
        return ()
    number = tuple(map(int, parts))
    return tuple(name for first, names in _BEFORE.items() if number < first for name in names)


PROFILES: dict[str, tuple[str, ...]] = {
    release: profile(release)
    for release in ("0.19.1", *(".".join(map(str, release)) for release in sorted(_BEFORE)))
}
"""Those of all known releases, by the first that has it, the oldest first."""
