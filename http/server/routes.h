#pragma once
// The routes of the HTTP API: one table. Whatever depends on the route (the handler, the parser of its body,
// who may use it, the label of its metrics, its entry in /openapi.json) is a column of it.
//
// Paths are compared byte for byte, nothing is decoded or merged: a route has one spelling, so no check of it
// can be bypassed by another.
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "http/api/api.h"
#include "http/api/openai_request.h"
#include "http/api/request.h"
#include "http/server/api_keys.h"
#include "http/server/backend.h"

namespace troupe::http {

/// What serves a route.
enum class Handler : std::uint8_t {
  json,     ///< a body that Route::parse turns into a Request
  info,     ///< a Call with Route::info
  health,   ///< ready or not, under the names that load balancers use
  live,     ///< 200 while the event loop is alive
  openapi,  ///< the document of /openapi.json
  page,     ///< for people: http/pages/pages.h
  store,    ///< a Call with Route::resource
};

/// What a listening socket serves.
enum class Pages : std::uint8_t { api, operations, both };

/// A set. HEAD is taken wherever GET is, OPTIONS everywhere.
enum Methods : std::uint8_t { kGet = 1, kPost = 2, kDelete = 4 };

/// Parses and checks a JSON body: the request, or an error that names the field.
using BodyParser = Result<Parsed> (*)(std::string_view body, const RequestRules& rules);

struct Route {
  std::string_view path;  ///< with a name in braces where any text may stand ("/v1/models/{model}"); what
                          ///< follows the braces ends the path
  std::uint8_t methods = kGet;  ///< of Methods
  Handler handler = Handler::info;
  Access access = Access::client;     ///< the least key that opens it where keys are asked for
  Pages pages = Pages::api;           ///< listeners that serve it; `both`: every one
  InfoRequest::Kind info{};           ///< of Handler::info
  StoreRequest::Resource resource{};  ///< of Handler::store
  BodyParser parse = nullptr;         ///< of Handler::json
  Api api = Api::chat;                ///< of Handler::json; of others, the form of errors
  std::string_view label{};           ///< of its metrics; empty: the path

  // For /openapi.json.
  std::string_view about{};      ///< empty: not in the document
  const char* answer = nullptr;  ///< component of the answer's schema; null: no JSON, or not described
  const char* event = nullptr;   ///< component of the data of an event; null: never streams
  std::array<const char*, 2> required{};  ///< members that the body must have

  /// The model generates text for it.
  bool generates() const { return handler == Handler::json && http::generates(api); }
  /// It changes the server or has it compute: no web page of a foreign origin may do that.
  bool acts() const { return methods == kPost || handler == Handler::store; }
  /// A POST of it brings a file, which is not held in memory.
  bool uploads() const { return handler == Handler::store && resource == StoreRequest::Resource::files; }
};

std::span<const Route> routes();

/// What a method and a path lead to.
struct RouteMatch {
  const Route* route = nullptr;  ///< null: there is no such path for the listener, or it is "*"
  const Route* named = nullptr;  ///< the row that has the path, served or not
  bool allowed = false;          ///< the route takes the method
  StoreRequest::Verb verb{};     ///< the method, when it is allowed
  bool options = false;      ///< the method is OPTIONS: what the path takes, also asked by browsers before a
                             ///< request to another origin
  std::string_view allow{};  ///< the Allow header; empty: there is no such path
  std::string_view tail{};   ///< what stands for the name in braces; of a page the path

  Api api() const { return route != nullptr ? route->api : Api::chat; }
  bool serves(Handler handler) const { return allowed && route->handler == handler; }
  bool uploads() const { return verb == StoreRequest::Verb::post && allowed && route->uploads(); }
  /// The least key that opens it where keys are asked for. Browsers cannot add one to OPTIONS.
  Access access() const { return allowed ? route->access : options ? Access::none : Access::client; }
};

/// `path` is the target without its query.
RouteMatch match_route(std::string_view method, std::string_view path, Pages pages);

/// Label values of HTTP counters: a fixed set, so that clients cannot create new series. `route` may be null.
std::string_view metrics_label(const Route* route);

}  // namespace troupe::http
