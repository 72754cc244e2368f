"""The options in force at one owner: those of the configuration, and those in the catalogue that override them."""
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.options import StorageOptions


class OptionsInForce:
    """The options of one owner.  They change while it runs, so they are read from `current` whenever one is needed."""

    def __init__(self, catalogue: Catalogue, configured: StorageOptions):
        self._catalogue, self.configured = catalogue, configured
        self.current = catalogue.options.applied_to(configured)

    def __repr__(self) -> str:
        return f"<OptionsInForce {self.current}>"

    def configure(self, configured: StorageOptions) -> None:
        """Take over the options of a new configuration; `refresh` puts them in force."""
        self.configured = configured

    def refresh(self) -> None:
        """Read the options in the catalogue again, which were changed."""
        self.current = self._catalogue.options.applied_to(self.configured)
