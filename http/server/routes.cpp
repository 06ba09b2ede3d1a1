#include "http/server/routes.h"

#include "http/api/embeddings_request.h"
#include "http/api/messages_request.h"
#include "http/api/responses_request.h"
#include "http/pages/pages.h"

namespace troupe::http {
namespace {

// clang-format off: a table
constexpr Route kRoutes[] = {
    {.path = "/v1/chat/completions",
     .methods = kPost,
     .handler = Handler::json,
     .parse = parse_chat,
     .api = Api::chat,
     .about = "OpenAI's chat completions",
     .answer = "Chat",
     .event = "ChatChunk"},
    {.path = "/v1/completions",
     .methods = kPost,
     .handler = Handler::json,
     .parse = parse_completion,
     .api = Api::completions,
     .about = "OpenAI's completions",
     .answer = "Completion",
     .event = "Completion"},
    {.path = "/v1/responses",
     .methods = kPost,
     .handler = Handler::json,
     .parse = parse_responses,
     .api = Api::responses,
     .about = "OpenAI's responses, without storage",
     .answer = "Response",
     .event = "ResponseEvent",
     .required = {"input"}},
    {.path = "/v1/messages",
     .methods = kPost,
     .handler = Handler::json,
     .parse = parse_messages,
     .api = Api::messages,
     .about = "Anthropic's messages",
     .answer = "Message",
     .event = "MessageEvent",
     .required = {"messages", "max_tokens"}},
    {.path = "/v1/messages/count_tokens",
     .methods = kPost,
     .handler = Handler::json,
     .parse = parse_count_tokens,
     .api = Api::count_tokens,
     .about = "The tokens of a message's prompt",
     .answer = "TokenCount",
     .required = {"messages"}},
    {.path = "/v1/embeddings",
     .methods = kPost,
     .handler = Handler::json,
     .parse = parse_embeddings,
     .api = Api::embeddings,
     .about = "OpenAI's embeddings: of texts, token ids or messages",
     .answer = "Embeddings"},
    {.path = "/tokenize",
     .methods = kPost,
     .handler = Handler::json,
     .parse = parse_tokenize,
     .api = Api::tokenize,
     .about = "A prompt or messages to token ids",
     .answer = "Tokens"},
    {.path = "/detokenize",
     .methods = kPost,
     .handler = Handler::json,
     .parse = parse_detokenize,
     .api = Api::detokenize,
     .about = "Token ids to text",
     .answer = "Text",
     .required = {"tokens"}},

    {.path = "/v1/files",
     .methods = kGet | kPost,
     .handler = Handler::store,
     .resource = StoreRequest::Resource::files,
     .about = "OpenAI's files for batches: the list; POST takes one as multipart/form-data (--batch-dir)"},
    {.path = "/v1/files/{file}/content",
     .handler = Handler::store,
     .resource = StoreRequest::Resource::content,
     .label = "/v1/files",
     .about = "The bytes of a file"},
    {.path = "/v1/files/{file}",
     .methods = kGet | kDelete,
     .handler = Handler::store,
     .resource = StoreRequest::Resource::file,
     .label = "/v1/files",
     .about = "A file; DELETE removes it"},
    {.path = "/v1/batches",
     .methods = kGet | kPost,
     .handler = Handler::store,
     .resource = StoreRequest::Resource::batches,
     .about = "OpenAI's batches: the list; POST begins one"},
    {.path = "/v1/batches/{batch}/cancel",
     .methods = kPost,
     .handler = Handler::store,
     .resource = StoreRequest::Resource::cancel,
     .label = "/v1/batches",
     .about = "Cancel a batch"},
    {.path = "/v1/batches/{batch}",
     .handler = Handler::store,
     .resource = StoreRequest::Resource::batch,
     .label = "/v1/batches",
     .about = "A batch"},
    {.path = "/v1/models",
     .info = InfoRequest::Kind::models,
     .about = "The served models",
     .answer = "Models"},
    {.path = "/v1/models/{model}",
     .info = InfoRequest::Kind::model,
     .label = "/v1/models",
     .about = "One of them",
     .answer = "Model"},
    {.path = "/version",
     .info = InfoRequest::Kind::version,
     .about = "The version of the server",
     .answer = "Version"},
    {.path = "/openapi.json", .handler = Handler::openapi, .about = "This document"},
    {.path = "/v1/troupe/events",
     .access = Access::admin,
     .info = InfoRequest::Kind::events,
     .about = "The live state of the engine, as server-sent events"},
    {.path = "/reset_prefix_cache",
     .methods = kPost,
     .access = Access::admin,
     .info = InfoRequest::Kind::reset_prefix_cache,
     .about = "Forget what the prefix cache holds"},

    {.path = "/", .handler = Handler::page, .access = Access::none, .about = "The chat page"},
    {.path = "/topology",
     .handler = Handler::page,
     .access = Access::none,
     .about = "The page that shows the live state"},
    {.path = "/docs",
     .handler = Handler::page,
     .access = Access::none,
     .about = "The page that shows this document"},
    {.path = "/pages/{file}", .handler = Handler::page, .access = Access::none, .label = "/pages"},

    {.path = "/health",
     .handler = Handler::health,
     .access = Access::none,
     .pages = Pages::both,
     .about = "200 when requests are served, else 503"},
    {.path = "/health/ready",
     .handler = Handler::health,
     .access = Access::none,
     .pages = Pages::both,
     .about = "The same"},
    {.path = "/health/live",
     .handler = Handler::live,
     .access = Access::none,
     .pages = Pages::both,
     .about = "200 while the event loop is alive"},
    {.path = "/ping",
     .methods = kGet | kPost,
     .handler = Handler::health,
     .access = Access::none,
     .pages = Pages::both,
     .about = "As /health"},
    {.path = "/metrics",
     .pages = Pages::operations,
     .info = InfoRequest::Kind::metrics,
     .about = "Prometheus metrics"},
    {.path = "/config-info",
     .pages = Pages::operations,
     .info = InfoRequest::Kind::config_info,
     .about = "The configuration"},
};
// clang-format on

bool serves(Pages listener, const Route& route) {
  return route.pages == Pages::both || listener == Pages::both || route.pages == listener;
}

bool takes(const Route& route, std::string_view method) {
  return ((route.methods & kGet) != 0 && (method == "GET" || method == "HEAD")) ||
         ((route.methods & kPost) != 0 && method == "POST") ||
         ((route.methods & kDelete) != 0 && method == "DELETE");
}

StoreRequest::Verb verb_of(std::string_view method) {
  if (method == "DELETE") return StoreRequest::Verb::remove;
  return method == "POST" ? StoreRequest::Verb::post : StoreRequest::Verb::get;
}

std::string_view allow_header(std::uint8_t methods) {
  switch (methods) {
    case kGet: return "GET, HEAD, OPTIONS";
    case kPost: return "POST, OPTIONS";
    case kGet | kDelete: return "GET, HEAD, DELETE, OPTIONS";
    default: return "GET, HEAD, POST, OPTIONS";
  }
}

/// What follows the name in braces.
std::string_view end_of(const Route& route) { return route.path.substr(route.path.find('}') + 1); }

/// What stands for the name in braces, which must be something; `path` itself where the route has no such
/// name.
std::string_view tail_of(const Route& route, std::string_view path) {
  const std::size_t brace = route.path.find('{');
  if (brace == route.path.npos) return path;
  return path.substr(brace, path.size() - brace - end_of(route).size());
}

bool matches(const Route& route, std::string_view path) {
  const std::size_t brace = route.path.find('{');
  if (brace == route.path.npos) return path == route.path;
  const std::string_view end = end_of(route);
  return path.size() > brace + end.size() && path.starts_with(route.path.substr(0, brace)) &&
         path.ends_with(end);
}

const Route* find_route(std::string_view path) {
  for (const Route& route : kRoutes) {
    if (matches(route, path)) return &route;
  }
  return nullptr;
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

RouteMatch match_route(std::string_view method, std::string_view path, Pages pages) {
  const bool options = method == "OPTIONS";
  if (path == "*" && options) return {.options = true, .allow = allow_header(kGet | kPost)};
  const Route* route = find_route(path);
  if (route == nullptr || !serves(pages, *route)) return {.named = route};
  const bool page = route->handler == Handler::page;
  if (page && find_page(path) == nullptr) return {.named = route};
  return {.route = route,
          .named = route,
          .allowed = takes(*route, method),
          .verb = verb_of(method),
          .options = options,
          .allow = allow_header(route->methods),
          .tail = page ? path : tail_of(*route, path)};
}

std::string_view metrics_label(const Route* route) {
  if (route == nullptr) return "other";
  return route->label.empty() ? route->path : route->label;
}

}  // namespace troupe::http
