"""Actions on connections and transactions."""
import re

from geminga.supervisor.console.actions.action import Actions, Plan, Values
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.rendering import counted, text

actions = Actions()


@actions.named("close-client", "address")
async def close_client(ask: Asking, values: Values) -> Plan:
    address = values["address"]
    rows = (await ask.get("/ops/v1/clients", limit=1_000))["rows"]
    found = next((row for row in rows if row["address"] == address), None)
    open_ = (found["producers"] or 0) + (found["consumers"] or 0) if found is not None else 0
    return Plan("DELETE", f"/ops/v1/clients/{ask.quoted(address)}", counted("action.close-client.effect", open_),
                f"geminga clients close {address}")


@actions.named("abort-transaction", "transaction", is_dangerous=True)
async def abort_transaction(ask: Asking, values: Values) -> Plan:
    most, _, least = re.sub(r"[^0-9,]", "", values["transaction"]).partition(",")
    rows = (await ask.get("/ops/v1/transactions", limit=1_000))["rows"]
    found = next((row for row in rows if row["transaction"] == f"({most},{least})"), None)
    effect = text("action.abort-transaction.gone") if found is None else counted(
        "action.abort-transaction.effect", found["messages"] or 0, acknowledgements=found["acknowledgements"] or 0)
    return Plan("POST", f"/admin/v3/transactions/abortTransaction/{most}/{least}", effect,
                f"geminga transactions abort {most},{least}", is_possible=found is not None)
