"""Reference pages that are made from the code: docs/configuration.md and docs/policies.md.

    python systemd/reference.py       # with geminga importable: writes the generated parts of both pages anew,
                                      # and keys of new policies into the example configuration

A generated part stands between `<!-- begin NAME: ... -->` and `<!-- end -->`; the rest of a page is written by hand.
The explanation of a configuration key is its comment in geminga.toml.example.  Ranges, Pulsar's names and everything
about policies come from the code.
"""
import json
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from geminga.storage.catalogue.policy_declaration import TOPIC, Part, Policy
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.options import StorageOptions
from geminga.supervisor.configuration import properties
from geminga.supervisor.configuration.restarts import NEEDS_RESTART, TLS_SWITCH
from geminga.supervisor.configuration.value_ranges import FORMS, RANGES

CHECKOUT = Path(__file__).resolve().parent.parent
EXAMPLE = CHECKOUT / "systemd/geminga.toml.example"
PAGES = CHECKOUT / "docs/configuration.md", CHECKOUT / "docs/policies.md"
WIDTH, WHOLE_WORDS = 120, {"break_long_words": False, "break_on_hyphens": False}
PULSARS = {ours: theirs for theirs, (ours, _) in properties.TRANSLATED.items()}
DEMANDS = {properties._is_on: "any value but `false`", properties._is_off: "`false`", properties._is_said: "any value",
           properties._is_bound: "a number above 0", properties._is_foreign: "a class that is not Pulsar's",
           properties._is_not_disabled: "any value but `DISABLED`"}
SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
UNITS = {"": "", "MB": ", MiB"}      # unit of a policy's value -> text, where that is not the unit's own name
NO_BOUND = (1 << 31) - 1             # a largest value that stands for no bound


def main() -> None:
    EXAMPLE.write_text(completed(EXAMPLE.read_text()))
    for page in PAGES:
        page.write_text(rewritten(page.read_text()))


def rewritten(text: str) -> str:
    """Return a page with its generated parts replaced by new ones.

    Raises KeyError for a part that nothing generates.
    """
    def make(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match[2]]()}\n\n{match[3]}"
    return re.sub(r"(<!-- begin ([\w ]+):[^\n]*-->\n).*?(<!-- end -->)", make, text, flags=re.DOTALL)


# -- configuration

def completed(example: str) -> str:
    """Return the example configuration with the keys of policies that it lacks, below the text of their policy.

    A key stands behind the one before it in StorageOptions, as the example has the order of the options.
    """
    docs = {part.key: policy.doc for policy in TABLE.values() for part in policy.parts if part.key}
    start = example.index("\n[storage]\n") + 1
    storage = example[start:example.index("\n[", start)]
    end, shown_end = start + len(storage), storage.index("\n") + 1      # where the key before ends
    for option in fields(StorageOptions):
        if match := re.search(rf"^#{option.name} = .*\n", storage, re.MULTILINE):
            shown_end = match.end()
        elif option.name in docs:
            doc = textwrap.wrap(docs[option.name], WIDTH, initial_indent="# ", subsequent_indent="# ", **WHOLE_WORDS)
            new = "\n".join(["", *doc, f"#{option.name} = {shown(getattr(StorageOptions(), option.name))}", ""])
            storage, shown_end = storage[:shown_end] + new + storage[shown_end:], shown_end + len(new)
    return example[:start] + storage + example[end:]


def shown(value: Any) -> str:
    """Return a value of a key in TOML."""
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def keys() -> str:
    """Return a paragraph for each configuration key, under a heading for each section."""
    lines, section = ["### Top of the file"], ""
    for name, (line, text) in explained().items():
        if name.rpartition(".")[0] != section:
            section = name.rpartition(".")[0]
            lines += ["", f"### [{section}]"]
        paragraph = f"- **`{line}`** {text}{limits(name)}{stronger(name)}{pulsars(name)}"
        lines += ["", *textwrap.wrap(paragraph, WIDTH, subsequent_indent="  ", **WHOLE_WORDS)]
    return "\n".join(lines)


def explained() -> dict[str, tuple[str, str]]:
    """Return {key: (its line, the comment above that line)} in the order of the example configuration.

    A line is such as `port = 6650`.
    """
    found, section, comment = {}, "", []
    for line in EXAMPLE.read_text().splitlines():
        if match := re.match(r"\[([\w.]+)\]", line):
            section = match[1] + "."
        elif match := re.match(r"#((\w+) = .*)", line):
            found[section + match[2]] = match[1], " ".join(" ".join(comment).split())
        comment = [*comment, line[2:]] if line.startswith("# ") else []
    return found


def limits(name: str) -> str:
    """Return a sentence with the values that a key accepts, "" if its type says so already."""
    if name in RANGES:
        first, last = (amount(name, number) for number in RANGES[name])
        return f" Values: {first} or more." if RANGES[name][1] == NO_BOUND else f" Values: {first} to {last}."
    return f" Values: {FORMS[name][1]}." if name in FORMS and FORMS[name][1] != "one line" else ""


def amount(name: str, number: int) -> str:
    """Return a number as text; a number of bytes has a unit."""
    if "bytes" in name or name.endswith("message_size"):
        whole = (f"{number // size} {unit}" for unit, size in SIZES if number > 0 and number % size == 0)
        return next(whole, str(number))
    return str(number)


def stronger(name: str) -> str:
    """Return a sentence with the policies that override a configuration key, "" if none does."""
    names = [policy.name for policy in TABLE.values() if any(f"storage.{part.key}" == name for part in policy.parts)]
    links = [f"[{one}](policies.md#{re.sub('[^a-z_]', '', one.lower())})" for one in names]
    return f" Policy: {', '.join(links)}." if links else ""


def pulsars(name: str) -> str:
    """Return sentences that give Pulsar's name of a key and say whether its change needs a restart."""
    theirs = f" Pulsar: `{PULSARS[name]}`." if name in PULSARS else ""
    return theirs + (" Needs a restart." if name in NEEDS_RESTART else "")


def restarts() -> str:
    """Return a table of the keys whose change needs a restart, with the reasons."""
    names: dict[str, list[str]] = {}
    for name, why in NEEDS_RESTART.items():
        names.setdefault(why, []).append(f"`{name}`")
    rows = [(", ".join(some), why) for why, some in names.items()]
    return table(("key", "why"), [*rows, ("`tls.certificate`, from empty or to empty", TLS_SWITCH)])


def refused() -> str:
    rows = [(f"`{name}`", DEMANDS[demands], why) for name, (demands, why) in properties.REFUSED.items()]
    return table(("Pulsar's key", "refused with", "because"), rows)


def unmet() -> str:
    rows = [(f"`{name}`", DEMANDS[demands], text) for name, (demands, text) in properties.UNMET.items()]
    return table(("Pulsar's key", "not followed with", "instead"), rows)


# -- policies

def policies() -> str:
    """Return a chapter for each policy that has an effect."""
    return "\n\n".join(chapter(policy) for policy in TABLE.values() if policy.where)


def chapter(policy: Policy) -> str:
    levels = [setting(policy, level) for level in policy.levels]
    return "\n".join([f"### {policy.name}", "", *textwrap.wrap(policy.doc, WIDTH), "", *levels, "", values(policy)])


def setting(policy: Policy, level: str) -> str:
    """Return a line that shows the command and the REST request which set a policy at a level."""
    group, route = "topicPolicies" if level == TOPIC else "namespaces", policy.route_at(level)
    assert route is not None
    verb = f"geminga admin {group} set-{policy.verb_at(level)}"
    return f"- {level.title()}: `{verb}`, REST `{route.method} .../{route.path}`"


def values(policy: Policy) -> str:
    """Return a table of a policy's values: name in JSON, option, and the configuration key that is its default."""
    found = {level: {part.json: option for part, option in policy.options_at(level)} for level in policy.levels}
    units = {name: option.unit for some in found.values() for name, option in some.items()}
    rows = [(f"`{part.json}`" if part.json else "(the value)", kind(part, units.get(part.json, "")),
             options({level: some[part.json].flags for level, some in found.items() if part.json in some}),
             default(part)) for part in policy.parts]
    return table(("field", "value", "option", "the broker's default"), rows)


def kind(part: Part, unit: str) -> str:
    choices = [f"`{choice}`" for choice in part.type.choices if choice]
    return ", ".join(choices) or part.type.name + UNITS.get(unit, f", {unit}")


def options(flags: dict[str, str]) -> str:
    """Return the names of an option, both sides for a switch; with the level if the names differ between levels."""
    names = {level: ", ".join(f"`{side.split()[0]}`" for side in text.split("/")) for level, text in flags.items()}
    if len(set(names.values())) > 1:
        return ", ".join(f"{level} {text}" for level, text in names.items())
    return next(iter(names.values()), "")


def default(part: Part) -> str:
    if not part.key:
        return ""
    name = f"storage.{part.key}"
    return f"`{name}`" + (f" (Pulsar: `{PULSARS[name]}`)" if name in PULSARS else "")


def without_effect() -> str:
    """Return a table of the policies that are stored and returned without effect, with the reasons."""
    rows = [(f"`{policy.name}`", ", ".join(policy.levels), policy.why)
            for policy in TABLE.values() if not policy.where]
    return table(("policy", "set for", "no effect, because"), rows)


# -- text

def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


PARTS: dict[str, Callable[[], str]] = {
    "keys": keys, "restarts": restarts, "refused": refused, "unmet": unmet,
    "policies": policies, "without effect": without_effect,
}

if __name__ == "__main__":
    main()
