"""Who sees whom: the band, how its width is counted, and what is no band."""

from __future__ import annotations

import numpy as np

from utils.doctor.windows.notes import MIDDLE, NEVER, SHOWN, N, WindowNotes, band, picture


def seen_in(weights: np.ndarray) -> np.ndarray:
    """Which keys have a share to speak of, in a matrix where all scores were equal."""
    largest = np.abs(weights).max()
    return (np.abs(weights) > 0.03 * largest) & (largest > NEVER)


def set_hubs_aside(case: WindowNotes, seen: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Set aside what every later query sees, whatever the window; the rest is the window."""
    hubs = [j for j in (0, 1) if all(s[j:, j].all() for s in seen.values())]
    if not hubs or all(s[MIDDLE, :MIDDLE].all() for s in seen.values()):
        return seen
    rest = {w: _without(s, hubs) for w, s in seen.items()}
    sentence = f"Key {', '.join(map(str, hubs))} is seen from any distance, not only inside the window."
    cure = "Apply the window to every key, or say that the token is meant to be global."
    case.fault("global token", sentence, cure, SHOWN, *picture(seen[3], rest[3]))
    return rest


def _without(seen: np.ndarray, hubs: list[int]) -> np.ndarray:
    """The same with rows and columns of the hubs cut to the band of the others."""
    others = seen.copy()
    others[:, hubs] = False
    inside = band(*_edges(others))
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
    if (
        all(np.array_equal(~s, band(*_edges(~s))) and not np.diag(s).any() for s in seen.values())
        and seen[3].any()
    ):
        sentence = "What lies inside the window is hidden, and what lies outside is seen."
        case.fault(
            "window inverted", sentence, "Hide where |i - j| > window.", SHOWN, *picture(seen[3], ~seen[3])
        )
        return None, False
    if not any(np.diag(s)[2:].any() for s in seen.values()):
        case.fault(
            "token does not see itself",
            "A token's own key is hidden from it, and the first token has none at all.",
            "Let the window contain distance 0: i - j >= 0, not > 0.",
            SHOWN,
            *picture(seen[3], seen[3] | np.eye(N, dtype=bool)),
        )
        return None, False
    bands = {w: band(*edges[w]) for w in seen}
    if _is_ring(seen, edges):
        case.fault(
            "wraps around",
            "The first tokens see the last ones: the window runs around the ends, as torch.roll does.",
            "Pad instead of rolling, and hide the padding.",
            SHOWN,
            *picture(seen[3], bands[3], side=N),  # it shows at the far end
        )
        seen = bands
    if not all(np.array_equal(s, bands[w]) for w, s in seen.items()):
        return None, _no_band(case, seen, bands[3], causal)
    lows, highs = [-edges[w][0] for w in (2, 3, 4)], [edges[w][1] for w in (2, 3, 4)]
    side = _direction(case, lows, highs, causal, seen[3])
    return _counting(case, lows, highs, side, causal, seen[3]), True


def _is_ring(seen: dict[int, np.ndarray], edges: dict[int, tuple[int, int]]) -> bool:
    apart = np.arange(N)[None, :] - np.arange(N)[:, None]
    around = {w: (apart - low) % N <= high - low for w, (low, high) in edges.items()}
    wide = any(high > low for low, high in edges.values())
    return wide and all(np.array_equal(s, around[w]) for w, s in seen.items())


def _direction(
    case: WindowNotes, lows: list[int], highs: list[int], causal: bool | None, seen: np.ndarray
) -> str:
    """Back, ahead or both; what does not fit `causal` is noted."""
    shown = (SHOWN, *picture(seen, band(-3, 0 if causal else 3)))
    if min(lows) >= 0 and max(highs) <= 0:
        if causal is False:
            sentence = "Nothing ahead is seen although looking both ways was asked for."
            case.fault("looks back only", sentence, "With causal=False let j run to i + window.", *shown)
        return "back"
    if highs == [1, 1, 1] and lows[0] < lows[1] < lows[2]:
        sentence = "Token i sees token i + 1, whatever the window, and looks back else."
        shown = (SHOWN, *picture(seen, band(-lows[1], 0)))
        case.fault("sees one token ahead", sentence, "Cut at j <= i: tril() without diagonal=1.", *shown)
        return "back"
    if max(lows) <= 0 < min(highs):
        sentence = f"Token i sees i ... i + {highs[1]}: the window lies on the future's side."
        shown = (SHOWN, *picture(seen, seen.T))
        case.fault("window looks ahead", sentence, "Look back: i - window <= j <= i.", *shown)
        return "ahead"
    if causal and max(highs) <= 1:
        sentence = "Token i sees token i + 1 although it should only look back."
        case.fault("sees one token ahead", sentence, "Cut at j <= i: tril() without diagonal=1.", *shown)
        return "back"
    if causal:
        sentence = f"Token i sees up to i + {highs[1]} although it should only look back."
        case.fault("sees the future", sentence, "Add the condition j <= i.", *shown)
    return "both"


def _counting(
    case: WindowNotes, lows: list[int], highs: list[int], side: str, causal: bool | None, seen: np.ndarray
) -> str | None:
    """How do 2, 3, 4 become the numbers of neighbours? Four ways are in use, everything else is off."""
    if side == "both" and lows != highs:
        return _unlike_sides(case, lows, highs, seen)
    reach = tuple(highs if side == "ahead" else lows)
    both = ("both sides together", "|i - j| <= window", "window too narrow")
    ways = {  # how it counts; what to write where another way was meant, and what the window is then
        (2, 3, 4): (
            "neighbours on each side, the token itself not counted",
            "i - j < window",
            "window too wide",
        ),
        (1, 2, 3): ("keys, the token itself counted", "i - j <= window", "window too narrow"),
        (1, 1, 2): both,
        (0, 1, 1): both,
    }
    if reach not in ways:
        case.fault(
            f"window too {'wide' if reach[1] > 3 else 'narrow'}",
            f"window=2, 3, 4 reach {reach[0]}, {reach[1]}, {reach[2]} token(s) far: no known way to count "
            "gives that.",
            "Compare with < and <= once more: i - j <= window.",
            SHOWN,
            *picture(seen, band(-3, 0 if causal or max(highs) <= 0 else 3)),
        )
        return None
    way, condition, kind = ways[reach]
    # counting the token itself is what was meant by True, neighbours only by False, both sides by neither
    meant = {(2, 3, 4): (False, None), (1, 2, 3): (True,)}.get(reach, ())
    if case.counts_self is not None and case.counts_self not in meant:
        sentence = f"window=3 reaches {reach[1]} tokens far, which is not what was meant."
        case.fault(kind, sentence, f"Write {condition}.")
    elif case.counts_self is None and reach == (1, 2, 3):
        sentence = "window=3 reaches 2 tokens far: it counts itself."
        case.convention("window counts the token itself", sentence)
    elif case.counts_self is None and reach != (2, 3, 4):
        case.convention("window counts both sides", f"window=4 reaches {reach[2]} tokens to each side.")
    case.tried.append("who sees whom, with windows of 2, 3 and 4")
    return way


def _unlike_sides(case: WindowNotes, lows: list[int], highs: list[int], seen: np.ndarray) -> str | None:
    if [a + b + 1 for a, b in zip(lows, highs, strict=True)] == [2, 3, 4]:
        # an even number of keys cannot lie evenly around a token
        sentence = "window=4 is 4 keys in all: 2 on one side, 1 on the other."
        case.convention("window is the number of keys", sentence)
        return "keys in all"
    sentence = f"window=3 reaches {lows[1]} back but {highs[1]} ahead."
    cure = "An end is excluded: range(i - w, i + w + 1), or w + 1 in a slice."
    case.fault("sides differ", sentence, cure, SHOWN, *picture(seen, band(-3, 3)))
    return None


def _no_band(case: WindowNotes, seen: dict[int, np.ndarray], inside: np.ndarray, causal: bool | None) -> bool:
    """Blocks, or a band that is wrong at its ends; True for blocks."""
    looks_ahead = not causal and np.triu(seen[3], 1)[4].any()
    shown = (SHOWN, *picture(seen[3], band(-3, 3 if looks_ahead else 0)))
    token = np.arange(N)
    for width in (lambda w: w, lambda w: w + 1, lambda w: 2 * w, lambda w: 2 * w + 1):
        apart = {w: token[:, None] // width(w) - token[None, :] // width(w) for w in seen}
        same, near = ({w: np.abs(a) <= far for w, a in apart.items()} for far in (0, 1))
        if all(np.array_equal(s, near[w]) or np.array_equal(s, np.tril(near[w])) for w, s in seen.items()):
            sentence = (
                f"Tokens see their own block of {width(3)} and its neighbour: how far depends on the place."
            )
            case.convention("blocks that see their neighbours", sentence)
            return True
        if all(np.array_equal(s, same[w]) or np.array_equal(s, np.tril(same[w])) for w, s in seen.items()):
            sentence = (
                f"Tokens see only their own block of {width(3)}: the first of a block does not see its "
                "neighbour."
            )
            cure = "Let each block see the one before it too, and hide what is too far."
            note = case.convention if case.blocks else case.fault  # block_size says that they are meant
            note("blocks instead of a sliding window", sentence, cure, *shown)
            return True
    kind, sentence = (
        "no window",
        "What is seen is neither a band along the diagonal nor a pattern known here.",
    )
    if np.array_equal(seen[3][4:-4], inside[4:-4]):
        kind = "wrong at the edges"
        sentence = "In the middle there is a window, but the first or last rows have another."
    case.fault(kind, sentence, "Compare the two matrices row by row.", *shown)
    return False
