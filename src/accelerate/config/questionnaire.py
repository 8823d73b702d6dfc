"""The door of the questionnaire: every Option with a question is asked in turn, if the answers so far call for it.

What is on screen comes from questionary; `prompt` can be replaced, so that a program or a test can give the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accelerate.config.enums import value_of
from accelerate.config.kinds import Boolean, Choice
from accelerate.config.option import Option, options

#: Asks one question: the setting, what to offer as the answer, and which choices to show (None: all of them).
Prompt = Callable[[Option, Any, Sequence[str] | None], Any]


def ask(
    *classes: type,
    answers: Mapping[str, Any] | None = None,
    offer: Mapping[str, Sequence[str]] | None = None,
    prompt: Prompt | None = None,
) -> dict[str, Any]:
    """Ask for the settings of `classes` and return the answers, by `dest`.

    Args:
        answers: what is known already, such as the settings of the present config file; offered as the answer.
        offer: by `dest`, the choices to show where not all of them make sense on this machine.
        prompt: asks one question; on the terminal by default.
    """
    known = dict(answers or {})
    given: dict[str, Any] = {}
    open_questions = [declared for cls in classes for declared in options(cls).values() if declared.ask]
    # From the top after every answer: a question may hang on one that stands below it in the file.
    while declared := next((one for one in open_questions if one.when is None or one.when(given)), None):
        open_questions.remove(declared)
        suggestion = known.get(declared.dest, declared.default if declared.suggest is None else declared.suggest)
        answer = (prompt or on_terminal)(declared, suggestion, (offer or {}).get(declared.dest))
        if answer not in (None, ""):
            given[declared.dest] = declared.read(answer, f"the answer to {declared.ask!r}")
    return given


def file_content(answers: Mapping[str, Any], *classes: type) -> dict[str, Any]:
    """Return the content of a config file that holds `answers` (by `dest`), each under its key and section."""
    content: dict[str, Any] = {}
    for declared in (declared for cls in classes for declared in options(cls).values()):
        if declared.key and declared.dest in answers:
            place = content.setdefault(declared.section, {}) if declared.section else content
            place[declared.key] = value_of(answers[declared.dest])
    return content


def on_terminal(declared: Option, suggestion: Any, offered: Sequence[str] | None) -> Any:
    """Ask one question on the terminal, what it is about in a line above it; ctrl-c raises KeyboardInterrupt."""
    import questionary

    question, kind = str(declared.ask), declared.kind
    questionary.print(declared.help, style="fg:ansibrightblack")
    if isinstance(kind, Boolean):
        return questionary.confirm(question, default=bool(suggestion)).unsafe_ask()
    if isinstance(kind, Choice):
        shown = list(offered or kind.names)
        default = kind.format(suggestion) if suggestion is not None else None
        return questionary.select(question, shown, default=default if default in shown else None).unsafe_ask()
    default = "" if suggestion is None else kind.format(suggestion)
    return questionary.text(question, default=default, validate=_validator(declared)).unsafe_ask()


def _validator(declared: Option) -> Callable[[str], bool | str]:
    """Return the check that questionary makes while a person types: True, or what is wrong."""

    def check(text: str) -> bool | str:
        if not text and declared.default is None:
            return True  # the question says what no answer means
        try:
            declared.kind.parse(text)
        except ValueError as error:
            return f"{error}; allowed: {declared.kind.allowed}"
        return True

    return check
