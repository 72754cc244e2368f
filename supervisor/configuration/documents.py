"""The tables of docs/policies.md; `python -m geminga.supervisor.configuration.documents` prints them."""
from geminga.storage.catalogue.policy_table import TABLE, Policy
from geminga.supervisor.configuration.properties import TRANSLATED


def policies_in_force() -> str:
    """What has its effect: where it is set, and which keys of the configuration hold where it is not set."""
    rows = [f"| `{policy.name}` | {_levels(policy)} | {_keys(policy)} | {policy.doc} |" for policy in TABLE.values() if policy.where]
    return "\n".join(["| policy | of | broker's default: key, Pulsar's key | |", "|---|---|---|---|", *rows])


def policies_without_effect() -> str:
    """What is stored and returned, and why nothing follows from it."""
    rows = [f"| `{policy.name}` | {_levels(policy)} | {policy.why} |" for policy in TABLE.values() if not policy.where]
    return "\n".join(["| policy | of | no effect, because |", "|---|---|---|", *rows])


def _levels(policy: Policy) -> str:
    return ", ".join(name for name, level in (("namespace", policy.namespace), ("topic", policy.topic)) if level)


def _keys(policy: Policy) -> str:
    pulsars = {ours.removeprefix("storage."): theirs for theirs, (ours, _) in TRANSLATED.items()}
    keys = dict.fromkeys(part.key for part in policy.parts if part.key)
    return "<br>".join(f"`{key}`, `{pulsars[key]}`" if key in pulsars else f"`{key}`" for key in keys)


if __name__ == "__main__":
    print(policies_in_force(), policies_without_effect(), sep="\n\n")
