"""Words of the console: they stand in one file, all of them are used, and templates have none of their own."""
import ast
import re
from pathlib import Path

import pytest

from geminga.supervisor.console import payloads, rendering
from geminga.supervisor.console.actions.action import Action
from geminga.supervisor.console.pages import policy_rows
from geminga.supervisor.console.routes import dialogs

from ..breaches import assert_none

HERE = Path(rendering.__file__).resolve().parent
TEMPLATES = sorted((HERE / "templates").glob("*.html"))
SOURCES = sorted(HERE.rglob("*.py"))
SCRIPTS = sorted((HERE / "static").glob("*.js"))
_KEY = re.compile(r"""["']([a-z_]+(?:\.[a-z_0-9-]+)+)["']""")
_STEM = re.compile(r"""["']([a-z_]+\.(?:[a-z_0-9.-]*[._])?)["']\s*~""")      # "error.title_" ~ status
_F_STEM = re.compile(r"""f["']([a-z_]+\.(?:[a-z_0-9.-]*[._])?)\{""")         # f"audit.action_{name}"
_WORD = re.compile(r"word\(\s*[\"'](\w+)[\"']")
_SAID = re.compile(r"""said\(\s*["'`](\w+)""")              # words of messages, in scripts of their own


def used():
    """Return (keys, beginnings of keys that are made) in templates and code."""
    text = "\n".join(path.read_text() for path in (*TEMPLATES, *SOURCES))
    keys = {key for key in _KEY.findall(text) if key in rendering.texts() or f"{key}_one" in rendering.texts()}
    stems = set(_STEM.findall(text)) | set(_F_STEM.findall(text))
    words = {f"common.{name}" for path in SCRIPTS for name in _WORD.findall(path.read_text())}
    said = {name for path in SCRIPTS for name in _SAID.findall(path.read_text())}
    words |= {f"messages_script.{name}" for name in said}
    stems |= {f"messages_script.{name}" for name in said if name.endswith("_")}      # ended_${told}
    return keys | words, stems


def test_every_word_is_used():
    keys, stems = used()
    of_actions = {f"action.{action.words or action.name}.{name}" for action in dialogs.ACTIONS.values()
                  for name in ("title", "button", *(field.name for field in action.fields),
                               *(f"{field.name}_hint" for field in action.fields))}
    left = [key for key in rendering.texts()
            if not ({key, key.removesuffix("_one")} & (keys | of_actions)
                    or any(key.startswith(stem) for stem in stems - {"action."}))]
    assert left == []


@pytest.mark.slow
def test_every_text_that_is_asked_for_exists():
    wanted = set()
    for path in TEMPLATES:
        wanted |= set(re.findall(r"""\bt\(\s*["']([^"']+)["']\s*[,)]""", path.read_text()))
        wanted |= set(re.findall(r"""\bcounted\(\s*["']([^"']+)["']""", path.read_text()))
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in ("text", "counted") and isinstance(node.args[0].value, str):
                    wanted.add(node.args[0].value)
    assert sorted(wanted - set(rendering.texts())) == []


def test_scripts_find_their_words():
    wanted = {name for path in SCRIPTS for name in _WORD.findall(path.read_text())}
    assert sorted(wanted - set(rendering._script_words())) == []


def test_texts_that_count_have_one_for_one():
    keys = set(rendering.texts())
    assert [key for key in keys if key.endswith("_one") and key.removesuffix("_one") not in keys] == []


def test_every_action_has_words_for_its_dialog():
    assert_none(f"{action.name}: {name} has no words"
                for action in dialogs.ACTIONS.values() for name in named_by(action)
                if f"action.{action.words or action.name}.{name}" not in rendering.texts())


def named_by(action: Action) -> list[str]:
    return ["title", "button", *(field.name for field in action.fields if not field.label)]


def test_no_template_has_words_of_its_own():
    assert_none(f"{path.name}: {word}" for path in TEMPLATES for word in own_words(path.read_text()))


def own_words(template):
    text = re.sub(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", "", template, flags=re.DOTALL)
    yield from re.findall(r"[A-Za-z]{2,}", re.sub(r"<[^>]*>", "\n", text))
    for attribute in ("title", "aria-label", "placeholder", "alt"):
        yield from re.findall(rf'\s{attribute}="[^"]*[A-Za-z]{{2,}}[^"]*"', text)


def test_an_escaped_value_cannot_leave_its_place():
    made = rendering.environment().from_string(
        '<p title="{{ name }}">{{ name }}</p><script type="application/json">{{ name|json }}</script>')
    html = made.render(name='"><script>alert(1)</script>\u202e\x00')
    assert html.count("<script") == 1 and "\u202e" not in html and "\x00" not in html


@pytest.mark.parametrize("value, shown", [
    ("orders", "orders"), ("ab\u202ecd", "ab\\u202ecd"), ("a\x1b[31m", "a\\x1b[31m"), ("größe 😀", "größe 😀"),
    ("a\nb\tc", "a\nb\tc"), ("\ufeff", "\\ufeff"), ("\U000e0041", "\\U000e0041")])
def test_characters_that_nobody_sees_are_shown_by_their_codes(value, shown):
    assert rendering.visible(value) == shown


def test_topics_and_names_in_a_command_are_quoted_for_a_shell():
    assert payloads.words("persistent://public/default/a b", "-s", "it's") == """'public/default/a b' -s 'it'"'"'s'"""


def test_a_policy_is_shown_by_lines_and_begins_a_dialog_with_its_values():
    value = {"limit": 5, "names": ["a", "b"], "policy": None, "none": []}
    assert policy_rows.told(value) == ["limit: 5", "names: a, b", "policy: \u2013", "none: \u2013"]
    assert policy_rows.fields_of(value) == {"limit": "5", "names": "a, b", "policy": "", "none": ""}
    assert (policy_rows.told(True), policy_rows.fields_of(True)) == (["true"], {"value": "true"})
