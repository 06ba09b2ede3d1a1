#pragma once
// Which handler a method and a path mean. Paths are compared as they came: nothing is decoded, merged or
// folded, so there is no second spelling of a route for a guard to miss.
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

/// Health may be asked without a key; nothing else may.
constexpr bool needs_key(Handler handler) { return handler != Handler::health && handler != Handler::live; }

/// Whether the handler reads a JSON body.
constexpr bool takes_json(Handler handler) {
  return handler == Handler::chat || handler == Handler::completions || handler == Handler::tokenize ||
         handler == Handler::detokenize;
}

}  // namespace troupe::http
