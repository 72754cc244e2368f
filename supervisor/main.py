"""The geminga command."""
import argparse
import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")     # before numpy is imported: no thread per core and process


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status (2: bad configuration or arguments)."""
    options = _parser().parse_args(arguments)
    return options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="geminga", description="A message broker for one host that Apache Pulsar clients talk to.")
    commands = parser.add_subparsers(required=True, metavar="command")
    serve = commands.add_parser("serve", help="run the broker in the foreground")
    serve.add_argument("--config", metavar="FILE", help="TOML, or Pulsar's broker.conf or standalone.conf")
    serve.add_argument("--data-dir", metavar="DIR", help="where everything is kept (default: ./data)")
    serve.add_argument("--bind", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", help="of the binary protocol (default: 6650; 0 takes a free one)")
    serve.add_argument("--http-port", help="of HTTP (default: 8080; 0 takes a free one)")
    serve.add_argument("--workers", help="network processes (default: one per core)")
    serve.add_argument("--owners", help="storage processes (default: one per core)")
    serve.set_defaults(run=_serve)
    publish = commands.add_parser("publish", help="publish messages to a topic")
    publish.add_argument("topic")
    publish.add_argument("messages", nargs="+", metavar="message")
    publish.add_argument("--url", default="pulsar://127.0.0.1:6650")
    publish.set_defaults(run=_publish)
    read = commands.add_parser("read", help="print what a topic holds, and leave it there")
    read.add_argument("topic")
    read.add_argument("--url", default="pulsar://127.0.0.1:6650")
    read.set_defaults(run=_read)
    why = commands.add_parser("why", help="tell what keeps a subscription's consumers from getting more")
    why.add_argument("topic")
    why.add_argument("subscription")
    why.add_argument("--http-url", default="http://127.0.0.1:8080")
    why.set_defaults(run=_why)
    verify = commands.add_parser(
        "verify", help="look for damage in a data folder, whether or not a broker serves it",
        description="Looks at everything in a data folder and prints a line for each damage, with its place and its consequence.  A broker "
        "may go on serving the folder; none can be started on it meanwhile.",
        epilog="Exit status: 0 nothing is damaged; 3 damage that costs nothing; 4 entries, or what is known of subscriptions, are lost; "
        "5 something could not be looked at, or not be repaired; 2 wrong arguments.  With --repair: by what is left.")
    verify.add_argument("data_dir", metavar="DATA_DIR")
    verify.add_argument("--repair", action="store_true", help="copy damaged bytes to DATA_DIR/damaged, and make anew what can be: indexes, "
                        "headers, copies of state; no broker may serve the folder")
    verify.add_argument("--json", action="store_true", help="print an object a line, the summary last")
    verify.set_defaults(run=_verify)
    return parser


def _serve(options: argparse.Namespace) -> int:
    from geminga.supervisor import config as configuration
    from geminga.supervisor.serve import serve
    given = {"data_dir": options.data_dir, "network.bind": options.bind, "network.port": options.port, "http_port": options.http_port,
             "workers": options.workers, "owners": options.owners}
    try:
        loaded, notes = configuration.load(options.config, os.environ, given)
    except configuration.ConfigError as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 2
    return serve(loaded, notes)


def _publish(options: argparse.Namespace) -> int:
    import asyncio

    from geminga.supervisor import client
    try:
        for message_id in asyncio.run(client.publish(options.url, options.topic, [text.encode() for text in options.messages])):
            print("published {}:{}".format(*message_id))
    except (OSError, client.ClientError) as error:
        print(f"geminga: {options.url}: {error}", file=sys.stderr)
        return 1
    return 0


def _read(options: argparse.Namespace) -> int:
    import asyncio

    from geminga.supervisor import client
    try:
        for payload in asyncio.run(client.read(options.url, options.topic)):
            print(payload.decode(errors="replace"))
    except (OSError, client.ClientError) as error:
        print(f"geminga: {options.url}: {error}", file=sys.stderr)
        return 1
    return 0


def _why(options: argparse.Namespace) -> int:
    import json
    import urllib.error
    import urllib.parse
    import urllib.request

    from geminga.proto import names
    from geminga.proto.errors import Refusal
    try:
        topic = str(names.parse(options.topic)).replace("://", "/", 1)
        place = urllib.parse.quote(f"{topic}/{options.subscription}")
        with urllib.request.urlopen(f"{options.http_url}/ops/v1/why/{place}", timeout=10) as answer:
            partitions = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            print(f"geminga: {json.load(error)['reason']}", file=sys.stderr)
        return 1
    except (OSError, Refusal) as error:
        print(f"geminga: {options.http_url}: {error}", file=sys.stderr)
        return 1
    for found in partitions:
        print("{topic} {subscription} ({type}): backlog {backlog}".format(**found))
        if found["messages"]:
            print("  messages: " + ", ".join(f"{count} {what}" for what, count in found["messages"].items()))
        for cause in found["causes"]:
            print("  " + cause.pop("cause") + "".join(f", {name.replace('_', ' ')} {value}" for name, value in cause.items()))
    return 0


def _verify(options: argparse.Namespace) -> int:
    import contextlib
    from pathlib import Path

    from geminga.storage import verify
    data_dir = Path(options.data_dir)
    with verify.hold(data_dir) if options.repair else contextlib.nullcontext(False) as is_served:
        if is_served:
            print(f"geminga: {data_dir} is served by a broker: it can be looked at, and not repaired", file=sys.stderr)
            return verify.Severity.UNREADABLE
        return _report_damage(data_dir, is_json=options.json, repairs=options.repair)


def _report_damage(data_dir, *, is_json: bool, repairs: bool) -> int:
    import json
    import time
    from collections import Counter
    from dataclasses import asdict

    from geminga.storage import repair, verify
    from geminga.supervisor.config import core_count

    def say(text: str, **values) -> None:
        print(json.dumps(values) if is_json else text, flush=True)

    began, seen, findings = time.monotonic(), verify.Seen(), []
    for finding in verify.walk(data_dir, processes=core_count(), seen=seen):
        findings.append(finding)
        say(str(finding), **repair.as_json(finding))
    seconds = max(time.monotonic() - began, 1e-6)
    counts = {severity.name.lower(): count for severity, count in sorted(Counter(found.severity for found in findings).items())}
    say(f"{seen.partitions} partitions, {seen.ledgers} ledgers, {seen.entries} entries; {seen.bytes} bytes in {seconds:.1f} s, "
        f"{seen.bytes / seconds / 1e6:.0f} MB/s; found: {', '.join(f'{count} {name}' for name, count in counts.items()) or 'nothing'}",
        **asdict(seen), seconds=seconds, found=counts)
    if repairs and any(found.severity for found in findings):
        aside, made = repair.repair(data_dir, findings)
        findings = list(verify.walk(data_dir, processes=core_count()))
        left = sum(1 for found in findings if found.severity)
        say(f"damaged bytes are in {aside}; {made} files were made anew, {left} findings are left", aside=str(aside), made=made, left=left)
    return max((found.severity for found in findings), default=0)


if __name__ == "__main__":
    sys.exit(main())
