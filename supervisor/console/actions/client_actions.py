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
    held = sum((row["producers"] or 0) + (row["consumers"] or 0) for row in rows if row["address"] == address)
    return Plan("DELETE", f"/ops/v1/clients/{ask.quoted(address)}", counted("action.close-client.effect", held),
                f"geminga clients close {address}")


@actions.named("abort-transaction", "transaction", is_dangerous=True)
async def abort_transaction(ask: Asking, values: Values) -> Plan:
    most, _, least = re.sub(r"[^0-9,]", "", values["transaction"]).partition(",")
    rows = (await ask.get("/ops/v1/transactions", limit=1_000))["rows"]
    open_now = next((row for row in rows if row["transaction"] == f"({most},{least})"), None)
    effect = text("action.abort-transaction.gone") if open_now is None else counted(
        "action.abort-transaction.effect", open_now["messages"] or 0,
        acknowledgements=open_now["acknowledgements"] or 0)
    return Plan("POST", f"/admin/v3/transactions/abortTransaction/{most}/{least}", effect,
                f"geminga transactions abort {most},{least}", is_possible=open_now is not None)
