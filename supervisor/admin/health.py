"""Whether the broker works, shown by doing what it is for: a message is published and read back over the network."""
import asyncio
import uuid

from aiohttp import web

from geminga.proto.commands import SERVER_VERSION
from geminga.supervisor import client

routes = web.RouteTableDef()
SERVICE_URL = web.AppKey("service_url", str)
TOPIC = "persistent://pulsar/system/healthcheck"
_SECONDS = 10


@routes.get("/status.html")
async def status(request: web.Request) -> web.Response:
    return web.Response(text="OK")


@routes.get("/admin/v2/brokers/ready")
async def ready(request: web.Request) -> web.Response:
    return web.Response(text="ok")


@routes.get("/admin/v2/brokers/version")
async def version(request: web.Request) -> web.Response:
    return web.Response(text=SERVER_VERSION.split()[2])


@routes.get("/admin/v2/brokers/health")
async def health(request: web.Request) -> web.Response:
    """200 `ok` after a round trip; 503 with what went wrong."""
    try:
        async with asyncio.timeout(_SECONDS):
            await _round_trip(request.app[SERVICE_URL])
    except (OSError, client.ClientError, TimeoutError) as error:
        raise web.HTTPServiceUnavailable(text=f"The round trip failed: {error or 'it took too long'}") from None
    return web.Response(text="ok")


async def _round_trip(url: str) -> None:
    session = await client.connect(url)
    try:
        payload = uuid.uuid4().bytes
        [message_id] = await session.publish(TOPIC, [payload])
        if payload not in await session.read(TOPIC, message_id):
            raise client.ClientError("the message that was published was not there to read")
    finally:
        session.close()
