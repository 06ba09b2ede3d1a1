#pragma once
// What happens with a request, without its socket: is it allowed, is its body valid, is it answered here or
// handed to the backend. Immutable, shared by all I/O threads.
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "http/api/openai_request.h"
#include "http/server/api_keys.h"
#include "http/server/backend.h"
#include "http/server/hosts.h"
#include "http/server/origins.h"
#include "http/server/request_head.h"
#include "http/server/routes.h"

namespace troupe::http {

/// Where a request has come in.
struct Entrance {
  Pages pages = Pages::both;
  bool open = false;      ///< its listener asks for no key and has no TLS
  bool loopback = false;  ///< its listener's address, or the client's, is a loopback address
  std::string address{};  ///< of this machine, that the client has connected to
};

struct Admission {
  RouteMatch match;
  std::string tail;    ///< of the match, percent-decoded; of InfoRequest::Kind::events the query's request
  StoreRequest store;  ///< of Handler::store, all but body and upload
  bool head_only = false;     ///< the method is HEAD
  std::string if_none_match;  ///< of Handler::page
  bool takes_gzip = false;    ///< of Handler::page: the client reads gzip
  std::string allow_origin;   ///< of Origins::answer_to()
  bool vary_origin = false;
  bool preflight = false;     ///< of OPTIONS: asked by a browser for a page of an allowed origin
  std::string allow_headers;  ///< for the preflight
  Status refusal;             ///< not ok: the answer
};

class RequestHandler {
 public:
  RequestHandler(Hosts hosts, std::vector<std::string> allowed_origins, const config::LimitOptions& limits,
                 ModelFacts model, const Backend& backend, std::string owner_salt = {},
                 std::vector<ModelFacts> more_models = {});

  /// Decides by the head alone: host, origin, route, key, media type. Every path needs a key of `keys`,
  /// unknown ones too; exempt is health. An open entrance needs none.
  Admission admit(const HeadView& head, const Entrance& entrance, const ApiKeys& keys) const;

  /// For an admitted request with its whole body: the Call for the backend, without exchange and time, or the
  /// answer. `draining`: new generation requests are refused.
  std::variant<Call, Output> handle(const Admission& admission, std::string_view body,
                                    std::string_view request_id, bool draining) const;

 private:
  Output health(Handler handler, bool draining) const;
  std::variant<Call, Output> info(const Admission& admission, bool draining) const;
  Status check_host(const HeadView& head, const RouteMatch& match, const Entrance& entrance,
                    bool keyless) const;
  Status check_origin(const HeadView& head, const RouteMatch& match) const;

  Hosts hosts_;
  Origins origins_;
  config::LimitOptions limits_;
  ModelFacts model_;
  std::vector<ModelFacts> more_models_;
  std::string owner_salt_;  ///< of ApiKeys::owner()
  std::string openapi_;     ///< the document of /openapi.json
  const Backend& backend_;
};

/// The value of `name` in the query of a request target, percent-decoded; empty when it is absent.
std::string query_value(std::string_view target, std::string_view name);

/// The path of a request target: without its query, and without scheme and host of the absolute form.
std::string_view path_of(std::string_view target);

/// `given` when it is 1 to 128 letters, digits and -_.:/@+=, else empty.
std::string_view sane_request_id(std::string_view given);

}  // namespace troupe::http
