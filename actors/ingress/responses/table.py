"""The routes of the Responses API, for the application's table."""

from __future__ import annotations

from starlette.routing import Route

from actors.ingress.core import Ingress
from actors.ingress.plain_routes import Handler, plain
from actors.ingress.responses.conversation_routes import ConversationRoutes
from actors.ingress.responses.routes import Responses


def response_routes(ingress: Ingress, responses: Responses) -> list[Route]:
    def route(path: str, method: str, handler: Handler) -> Route:
        return Route(path, plain(ingress, handler), methods=[method])

    one, conversation = "/v1/responses/{response_id}", "/v1/conversations/{conversation_id}"
    of = ConversationRoutes(responses.conversations)
    return [
        Route("/v1/responses", responses.create(), methods=["POST"]),
        Route(one, responses.retrieve(), methods=["GET"]),
        route(one, "DELETE", responses.delete),
        route(f"{one}/cancel", "POST", responses.cancel),
        route(f"{one}/input_items", "GET", responses.input_items),
        route("/v1/conversations", "POST", of.create),
        route(conversation, "GET", of.get),
        route(conversation, "POST", of.update),
        route(conversation, "DELETE", of.delete),
        route(f"{conversation}/items", "POST", of.add_items),
        route(f"{conversation}/items", "GET", of.list_items),
        route(f"{conversation}/items/{{item_id}}", "GET", of.get_item),
        route(f"{conversation}/items/{{item_id}}", "DELETE", of.delete_item),
    ]
