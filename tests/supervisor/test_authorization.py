"""Who may do what over HTTP and over the binary protocol, with a real broker that asks for tokens."""

from aiohttp import web

from geminga.supervisor.admin import app, authorization, brokers

# -- the table of routes

def all_routes():
    application = web.Application()
    for part in app.PARTS:
        application.add_routes(part.routes)
    application.add_routes(brokers.LAST)
    return {("GET" if route.method == "HEAD" else route.method, route.resource.canonical) for route in application.router.routes()}


def test_every_route_says_what_it_demands():
    """One that is added does not slip in without, and none that is gone stays in the table."""
    assert all_routes() == authorization.DEMANDS.keys()


def test_a_route_that_forgot_is_for_super_users():
    assert authorization.demand_of("GET", "/admin/v2/new") == authorization.SUPER
