"""How wide text is in a picture, and its lines: by the widths of DejaVu Sans, or of what is about as wide."""

import unicodedata

_GROUPS = (  # widths of letters as shares of the font's size, rounded up
    (0.34, "'ijlIJ \0,./:;\\|"),
    (0.405, "f-()[]t!"),
    (0.465, 'r"'),
    (0.55, "*_`sz?c"),
    (0.615, "LFkvxyPTYoae"),
    (0.64, "hnuSbdgpqE$0123456789{}"),
    (0.7, "KAVXZBRC"),
    (0.79, "UNHDG&OQ"),
    (0.84, "w#+<=>^~±"),
    (1.0, "Mm%W@…"),
)
_WIDTHS = {letter: width for width, letters in _GROUPS for letter in letters}
_OTHER, _WIDE = 0.75, 1.05  # Greek or Cyrillic, and what fills a square, such as Chinese
_BOLD = 1.13  # times as wide
_SHORTEST = 0.3  # of a line: a path is broken after a slash behind that


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Width of a line, as far as one can tell without the font.

    Args:
        text: one line.
        size: of the font.
        bold: whether it is.
    """
    return sum(map(_width_of_letter, text)) * size * (_BOLD if bold else 1)


def _width_of_letter(letter: str) -> float:
    known = _WIDTHS.get(letter)
    if known is not None:
        return known
    return _WIDE if unicodedata.east_asian_width(letter) in "WF" else _OTHER


def cut_to(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """As much of a text as fits, with an ellipsis for what is cut off."""
    if width_of(text, size, bold=bold) <= width:
        return text
    return f"{text[: _fitting(f'…{text}', width, size, bold=bold) - 1]}…"


def lines_of(text: str, width: float, size: float, *, bold: bool = False) -> list[str]:
    """Lines that fit, without a word alone on the last if that can be; a word longer than a line goes on in the next.

    Example:
        >>> lines_of("one two three four", 60, 10)
        ['one two', 'three four']
    """
    lines = _filled(text, width, size, bold=bold)
    if len(lines) > 1 and " " not in lines[-1]:
        rest, _, word = lines[-2].rpartition(" ")
        last = f"{word} {lines[-1]}"
        if " " in rest and width_of(last, size, bold=bold) <= width:
            lines[-2:] = [rest, last]
    return lines


def _filled(text: str, width: float, size: float, *, bold: bool) -> list[str]:
    """Lines with as much in each as fits."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if width_of(longer, size, bold=bold) <= width:
            lines[-1] = longer
            continue
        lines += _pieces(word, width, size, bold=bold)
    return list(filter(None, lines))


def _pieces(word: str, width: float, size: float, *, bold: bool) -> list[str]:
    """A word in parts that fit, a path broken after a slash."""
    pieces = []
    while width_of(word, size, bold=bold) > width:
        end = _fitting(word, width, size, bold=bold)
        slash = word.rfind("/", 0, end) + 1
        end = slash if slash > end * _SHORTEST else end
        pieces.append(word[:end])
        word = word[end:]
    return [*pieces, word]


def _fitting(text: str, width: float, size: float, *, bold: bool) -> int:
    """How many letters fit, at least one."""
    left = width / size / (_BOLD if bold else 1)
    for i, letter in enumerate(text):
        left -= _width_of_letter(letter)
        if left < 0:
            return max(i, 1)
    return max(len(text), 1)
