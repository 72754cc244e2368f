"""Pages of the console as they are declared: all are served, and each has its template."""
import importlib
import pkgutil

import pytest

from geminga.supervisor.console import pages
from geminga.supervisor.console.pages import overview
from geminga.supervisor.console.rendering import HERE
from geminga.supervisor.console.routes import console

DECLARED = {name: importlib.import_module(f"{pages.__name__}.{name}").__dict__.get("pages")
            for _, name, _ in pkgutil.iter_modules(pages.__path__)}


def test_every_file_that_declares_pages_is_served():
    assert overview in console.PARTS
    assert {name for name, found in DECLARED.items() if found} == \
        {part.__name__.rpartition(".")[2] for part in console.PARTS}


@pytest.mark.parametrize("page", [page for found in DECLARED.values() for page in found or ()],
                         ids=lambda page: page.path)
def test_a_page_has_its_template(page):
    assert (HERE / "templates" / page.template).is_file()
