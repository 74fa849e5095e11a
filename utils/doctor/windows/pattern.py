"""Who sees whom: the band, how its width is counted, and what is no band."""

from __future__ import annotations

import numpy as np

from utils.doctor.report import CONVENTION, FAULT
from utils.doctor.windows.notes import MIDDLE, NEVER, SHOWN, N, WindowNotes, band


def seen_in(weights: np.ndarray) -> np.ndarray:
    """Which keys have a full share, compared with the largest of the row."""
    largest = np.abs(weights).max(1, keepdims=True)
    return (np.abs(weights) > 0.5 * largest) & (largest > NEVER)


def set_hubs_aside(case: WindowNotes, seen: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Set aside what every later query sees, whatever the window; the rest is the window."""
    hubs = [j for j in (0, 1) if all(s[j:, j].all() for s in seen.values())]
    if not hubs or all(s[MIDDLE, :MIDDLE].all() for s in seen.values()):
        return seen
    rest = {w: _without(s, hubs) for w, s in seen.items()}
    case.say(
        "global token",
        FAULT,
        f"Key {', '.join(map(str, hubs))} is seen from any distance, not only inside the window.",
        "Apply the window to every key, or say that the token is meant to be global.",
        SHOWN,
        (seen[3].astype(float), rest[3].astype(float)),
    )
    return rest


def _without(seen: np.ndarray, hubs: list[int]) -> np.ndarray:
    """The same with rows and columns of the hubs cut to the band of the others."""
    others = seen.copy()
    others[:, hubs] = False
    inside = band(N, *_edges(others))
    others[:, hubs] = seen[:, hubs] & inside[:, hubs]
    others[hubs] = seen[hubs] & inside[hubs]
    return others


def _edges(seen: np.ndarray) -> tuple[int, int]:
    """How far back and ahead a token in the middle looks."""
    columns = np.flatnonzero(seen[MIDDLE])
    return (int(columns[0]) - MIDDLE, int(columns[-1]) - MIDDLE) if len(columns) else (0, 0)


def pattern(case: WindowNotes, seen: dict[int, np.ndarray], causal: bool | None) -> tuple[str | None, bool]:
    """Name the pattern; returns the way of counting, and whether the pattern is a known one."""
    edges = {w: _edges(s) for w, s in seen.items()}
    if not any(np.diag(s)[2:].any() for s in seen.values()):
        case.say(
            "token does not see itself",
            FAULT,
            "A token's own key is hidden from it, and the first token has none at all.",
            "Let the window contain distance 0: i - j >= 0, not > 0.",
            SHOWN,
            (seen[3].astype(float), (seen[3] | np.eye(N, dtype=bool)).astype(float)),
        )
        return None, False
    if _is_ring(seen, edges):
        case.say(
            "wraps around",
            FAULT,
            "The first tokens see the last ones: the window runs around the ends, as torch.roll does.",
            "Pad instead of rolling, and hide the padding.",
            SHOWN,
            (seen[3].astype(float), band(N, *edges[3]).astype(float)),
        )
        seen = {w: band(N, *edges[w]) for w in seen}
    if not all(np.array_equal(s, band(N, *edges[w])) for w, s in seen.items()):
        return None, _no_band(case, seen, edges, causal)
    lows, highs = [-edges[w][0] for w in (2, 3, 4)], [edges[w][1] for w in (2, 3, 4)]
    side = _direction(case, lows, highs, causal, seen)
    sides = lows if side == "back" else highs if side == "ahead" else None
    return _counting(case, lows, highs, sides, seen, causal), True


def _is_ring(seen: dict[int, np.ndarray], edges: dict[int, tuple[int, int]]) -> bool:
    apart = np.arange(N)[None, :] - np.arange(N)[:, None]
    around = {w: (apart - low) % N <= high - low for w, (low, high) in edges.items()}
    return (
        all(np.array_equal(s, around[w]) for w, s in seen.items())
        and max(h - lo for lo, h in edges.values()) > 0
    )


def _direction(
    case: WindowNotes, lows: list[int], highs: list[int], causal: bool | None, seen: dict[int, np.ndarray]
) -> str:
    """Back, ahead or both; what does not fit `causal` is noted."""
    wanted = band(N, -3, 0 if causal else 3)
    shown, matrices = SHOWN, (seen[3].astype(float), wanted.astype(float))
    if min(lows) >= 0 and max(highs) <= 0:
        if causal is False:
            case.say(
                "looks back only",
                FAULT,
                "Nothing ahead is seen although looking both ways was asked for.",
                "With causal=False let j run to i + window.",
                shown,
                matrices,
            )
        return "back"
    if max(lows) <= 0 < min(highs):
        case.say(
            "window looks ahead",
            FAULT,
            f"Token i sees i ... i + {highs[1]}: the window lies on the future's side.",
            "Look back: i - window <= j <= i.",
            shown,
            matrices,
        )
        return "ahead"
    if causal:
        if max(highs) <= 1:
            case.say(
                "sees one token ahead",
                FAULT,
                "Token i sees token i + 1 although it should only look back.",
                "Cut at j <= i: tril() without diagonal=1.",
                shown,
                matrices,
            )
            return "back"
        case.say(
            "sees the future",
            FAULT,
            f"Token i sees up to i + {highs[1]} although it should only look back.",
            "Add the condition j <= i.",
            shown,
            matrices,
        )
    return "both"


def _counting(
    case: WindowNotes,
    lows: list[int],
    highs: list[int],
    sides: list[int] | None,
    seen: dict[int, np.ndarray],
    causal: bool | None,
) -> str | None:
    """How do 2, 3, 4 become the numbers of neighbours? Four ways are in use, everything else is off."""
    if sides is None and "sees one token ahead" not in [f.kind for f in case.findings] and lows != highs:
        return _unlike_sides(case, lows, highs, seen)
    reach = lows if sides is None else sides
    ways = {
        (2, 3, 4): "neighbours on each side, the token itself not counted",
        (1, 2, 3): "keys, the token itself counted",
        (1, 1, 2): "both sides together",
        (0, 1, 1): "both sides together",
    }
    way = ways.get(tuple(reach))
    if way is None:
        by = reach[1] - 3
        word = "wide" if by > 0 else "narrow"
        case.say(
            f"window too {word}",
            FAULT,
            f"window=2, 3, 4 reach {reach[0]}, {reach[1]}, {reach[2]} tokens far: no known way to "
            "count gives that.",
            "Compare with < and <= once more: i - j <= window.",
            SHOWN,
            (seen[3].astype(float), band(N, -3, 0 if causal or max(highs) <= 0 else 3).astype(float)),
        )
        return None
    if reach == [2, 3, 4] and case.counts_self:
        _meant(case, "window too wide", reach, "i - j < window")
    elif reach == [1, 2, 3] and case.counts_self is False:
        _meant(case, "window too narrow", reach, "i - j <= window")
    elif reach in ([1, 1, 2], [0, 1, 1]) and case.counts_self is not None:
        _meant(case, "window too narrow", reach, "|i - j| <= window")
    elif reach == [1, 2, 3] and case.counts_self is None:
        case.say(
            "window counts the token itself", CONVENTION, "window=3 reaches 2 tokens far: it counts itself."
        )
    elif reach in ([1, 1, 2], [0, 1, 1]) and case.counts_self is None:
        case.say("window counts both sides", CONVENTION, f"window=4 reaches {reach[2]} tokens to each side.")
    case.tried.append("who sees whom, with windows of 2, 3 and 4")
    return way


def _meant(case: WindowNotes, kind: str, reach: list[int], condition: str) -> None:
    case.say(
        kind,
        FAULT,
        f"window=3 reaches {reach[1]} tokens far, which is not what was meant.",
        f"Write {condition}.",
    )


def _unlike_sides(
    case: WindowNotes, lows: list[int], highs: list[int], seen: dict[int, np.ndarray]
) -> str | None:
    total = [a + b + 1 for a, b in zip(lows, highs, strict=True)]
    if total == [2, 3, 4]:  # an even number of keys cannot lie evenly around a token
        case.say(
            "window is the number of keys",
            CONVENTION,
            "window=4 is 4 keys in all: 2 on one side, 1 on the other.",
        )
        return "keys in all"
    case.say(
        "sides differ",
        FAULT,
        f"window=3 reaches {lows[1]} tokens back but {highs[1]} ahead.",
        "An end is excluded: range(i - w, i + w + 1), or w + 1 in a slice.",
        SHOWN,
        (seen[3].astype(float), band(N, -3, 3).astype(float)),
    )
    return None


def _no_band(
    case: WindowNotes, seen: dict[int, np.ndarray], edges: dict[int, tuple[int, int]], causal: bool | None
) -> bool:
    """Blocks, or a band that is wrong at its ends; True for blocks."""
    wanted = band(N, -3, 0 if causal or not np.triu(seen[3], 1)[4].any() else 3)
    shown, proof = SHOWN, (seen[3].astype(float), wanted.astype(float))
    token = np.arange(N)
    for w_block in (lambda w: w, lambda w: w + 1, lambda w: 2 * w, lambda w: 2 * w + 1):
        same = {w: (token[:, None] // w_block(w)) == (token[None, :] // w_block(w)) for w in seen}
        if all(np.array_equal(s, same[w]) or np.array_equal(s, np.tril(same[w])) for w, s in seen.items()):
            case.say(
                "blocks instead of a sliding window",
                FAULT,
                f"Tokens see only their own block of {w_block(3)}: the first of a block does not see "
                "its neighbour.",
                "Let each block see the one before it too, and hide what is too far.",
                shown,
                proof,
            )
            return True
    if np.array_equal(seen[3][4:-4], band(N, *edges[3])[4:-4]):
        kind, sentence = (
            "wrong at the edges",
            "In the middle there is a window, but the first or last rows have another.",
        )
    else:
        kind, sentence = (
            "no window",
            "What is seen is neither a band along the diagonal nor a pattern known here.",
        )
    case.say(kind, FAULT, sentence, "Compare the two matrices row by row.", shown, proof)
    return False
