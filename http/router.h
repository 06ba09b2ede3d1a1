#pragma once
// Which handler serves a method and a path. Paths are compared byte for byte, nothing is decoded or merged: a
// route has one spelling, so no check of it can be bypassed by another.
#include <cstdint>
#include <string_view>

namespace troupe::http {

enum class Handler : std::uint8_t {
  not_found,
  method_not_allowed,
  chat,
  completions,
  tokenize,
  detokenize,
  models,
  model,
  health,  ///< ready or not, under the names that load balancers use
  live,
  metrics,
  config_info,
  reset_prefix_cache,
};

/// What a listening socket serves.
enum class Pages : std::uint8_t { api, operations, both };

struct Route {
  Handler handler = Handler::not_found;
  std::string_view allow;  ///< of method_not_allowed: the Allow header
  std::string_view tail;   ///< of model: what follows /v1/models/
};

/// `path` is the target without its query. HEAD is taken wherever GET is.
Route route(std::string_view method, std::string_view path, Pages pages);

/// Health needs no key; everything else does.
constexpr bool needs_key(Handler handler) { return handler != Handler::health && handler != Handler::live; }

/// True when the handler reads a JSON body.
constexpr bool takes_json(Handler handler) {
  return handler == Handler::chat || handler == Handler::completions || handler == Handler::tokenize ||
         handler == Handler::detokenize;
}

}  // namespace troupe::http
