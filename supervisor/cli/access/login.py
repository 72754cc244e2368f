"""`geminga login`: a person signs in at an issuer of OpenID Connect, and a context gets the token."""
import time
from typing import Any

import click

from geminga.supervisor.configuration import contexts, target
from geminga.workers.pulsar_client.rest import plain


def _named(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    return target.complete_context(context, parameter, typed)


@click.command(epilog="\b\nExample:\n  geminga context set prod --url pulsar+ssl://broker.example.com:6651 --use\n"
                      "  geminga login --issuer https://id.example.com/realms/company --client-id geminga\n\n"
                      "Exit status: 0 done; 1 refused by the issuer; 2 wrong usage, or no such context.")
@click.argument("name", required=False, shell_complete=_named)
@click.option("--issuer", metavar="URL", help="The issuer, as [authentication.oidc] of the broker names it.")
@click.option("--client-id", metavar="NAME", help="The client that the issuer knows for this command.")
@click.option("--scope", metavar="TEXT", show_default="openid offline_access", help="What is asked for.")
@click.option("--audience", metavar="NAME", help="The audience of the issuer's tokens for the broker.")
def login(name: str | None, **given: str | None) -> int:
    """Sign in at an issuer, for a context.

    A code is entered in a browser, on any device, and the context NAME, the current one by default, gets the token.
    Commands refresh it when it expires.  Options that are not given are those of the sign-in before.
    """
    from geminga.supervisor.configuration import sign_in
    stored = contexts.load()
    if not (name := name or stored.current):
        raise click.UsageError("there is no current context: geminga context set NAME --url URL --use")
    former = stored.of(name)
    who: dict[str, Any] = {key: given[key] or former.get(key) for key in sign_in.ASKED}
    who = {key: value for key, value in who.items() if value}
    for key in ("issuer", "client_id"):
        if key not in who:
            raise click.UsageError(f"--{key.replace('_', '-')} is needed: context {name} has none yet")
    code = sign_in.begin(who)
    print(f"Open {plain(code.address)} in a browser, and enter the code {plain(code.text)}", flush=True)
    if code.whole_address:
        print(f"  or open {plain(code.whole_address)}", flush=True)
    tokens = sign_in.finish(who, code)
    with contexts.locked():
        stored = contexts.load()
        kept = {key: value for key, value in stored.of(name).items() if key not in (*sign_in.ASKED, *sign_in.KEPT)}
        contexts.save(stored._replace(by_name={**stored.by_name, name: kept | who | tokens}))
    print(f"Context {name} is signed in{_until(tokens)}.")
    return 0


def _until(tokens: contexts.Values) -> str:
    if "expires_s" not in tokens:
        return ""
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(tokens["expires_s"]))
    return f"; its token is refreshed from {until} on" if "refresh_token" in tokens else f" until {until}"
