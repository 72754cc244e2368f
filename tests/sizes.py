"""The largest folders, files and classes of the sources, to be looked at, and argued about when one grows.

    python -m tests.sizes                 # the ten largest of each kind
    python -m tests.sizes --count 30

No size fails a test: a bound that is met every day has formulas written twice and functions put where they do not
belong, to stay below it.
"""
import argparse
import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = "proto", "storage", "workers", "supervisor"
GENERATED = {Path("proto/pulsar_api_pb2.py")}
Sizes = list[tuple[int, str]]      # (size, name), the largest first


def sources() -> list[Path]:
    """Return the layers' files of Python below the checkout, without those that a program writes."""
    found = [path.relative_to(ROOT) for layer in LAYERS for path in (ROOT / layer).rglob("*.py")]
    return sorted(set(found) - GENERATED)


def files_of_folders() -> Sizes:
    """Return how many files each folder has, captions included."""
    return largest(Counter(str(source.parent) for source in sources()))


def lines_of_files() -> Sizes:
    return largest(Counter({str(source): (ROOT / source).read_text().count("\n") for source in sources()}))


def methods_of_classes() -> Sizes:
    """Return how many functions each class defines itself, properties included."""
    found: Counter[str] = Counter()
    for source in sources():
        for node in ast.walk(ast.parse((ROOT / source).read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
                found[f"{source} {node.name}"] = len(methods)
    return largest(found)


def largest(sizes: Counter[str]) -> Sizes:
    return sorted(((size, name) for name, size in sizes.items()), key=lambda row: (-row[0], row[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10, help="rows of each kind")
    options = parser.parse_args()
    for title, sizes in (("files of a folder", files_of_folders()), ("lines of a file", lines_of_files()),
                         ("methods of a class", methods_of_classes())):
        print(f"{title}: {len(sizes)} in all, {sizes[len(sizes) // 2][0]} in the middle")
        for size, name in sizes[:options.count]:
            print(f"{size:7}  {name}")


if __name__ == "__main__":
    main()
