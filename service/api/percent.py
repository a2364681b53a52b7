"""Shares as people read them."""

# Whole percent: what is told from nothing by no estimate is alike if its range says so too.
ALIKE = 10


def alike(low: float, high: float) -> bool:
    """Whether all of a range of changes is close to none; else a change that is not told is merely unclear."""
    return max(round(100 * abs(low)), round(100 * abs(high))) <= ALIKE


def signed(share: float) -> str:
    """A change in percent: 0.064 is +6.4 %."""
    points = 100 * share
    text = f"{points:+.1f}" if abs(points) < 9.95 else f"{points:+,.0f}"
    return f"{'0' if float(text.replace(',', '')) == 0 else text} %"


def between(low: float, high: float) -> str:
    """The ends of a change: -1 to +15 %, and where they are less than a percent with a digit more."""
    points = [100 * low, 100 * high]
    most = max(map(abs, points))
    if most < 0.05:
        return "less than 0.1 % either way"
    ends = [f"{end:+.1f}" if most < 0.95 else f"{end:+,.0f}" for end in points]
    return f"{' to '.join('0' if float(end.replace(',', '')) == 0 else end for end in ends)} %"


def chance(probability: float) -> str:
    """A probability, which is never shown as certain."""
    if probability > 0.99:
        return "more than 99 %"
    return "less than 1 %" if probability < 0.01 else f"{100 * probability:.0f} %"


def risk(probability: float) -> str:
    """A small probability, with the digit that tells it from another."""
    return "less than 0.1 %" if probability < 0.0005 else f"{100 * probability:.1f} %"
