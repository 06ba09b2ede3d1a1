#include "http/server/request_handler.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/percent.h"
#include "base/unix_seconds.h"
#include "http/api/model_choice.h"
#include "http/api/openai_error.h"
#include "http/api/openapi.h"
#include "http/pages/pages.h"

namespace troupe::http {
namespace {

constexpr std::size_t kMaxRequestId = 128;

// application/json, or application/anything+json; parameters do not matter.
bool is_json(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  constexpr std::string_view kSuffix = "+json";
  return same_word(type, "application/json") ||
         (same_word(type.substr(0, 12), "application/") && type.size() > kSuffix.size() &&
          same_word(type.substr(type.size() - kSuffix.size()), kSuffix));
}

// For a model name, which is only compared with the served names and never used as a path.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int byte = escaped_byte(text, i);
    out.push_back(byte < 0 ? text[i] : static_cast<char>(byte));
    if (byte >= 0) i += 2;
  }
  return out;
}

/// Ok in `restarting`: what is behind the front is replaced, and the request waits for that as those in
/// progress do.
Status not_serving(Health::State state) {
  switch (state) {
    case Health::State::ready:
    case Health::State::restarting: return {};
    case Health::State::loading: return {Code::unavailable, "The model is still loading", {}, "loading"};
    case Health::State::draining: return {Code::unavailable, "The server is shutting down", {}, "draining"};
  }
  return {};
}

/// A client key opens all but the routes that control the server. Those are open only where no key at all is
/// configured.
Status check_key(const HeadView& head, Access needed, const ApiKeys& keys) {
  const bool admin = needed == Access::admin && (keys.required() || keys.admins());
  if (needed == Access::none || !(keys.required() || admin)) return {};
  const Access access = keys.access(head.authorization, head.x_api_key);
  if (access == Access::none) {
    return {Code::unauthorized,
            "A valid API key is required: Authorization: Bearer KEY, or x-api-key: KEY",
            {},
            "invalid_api_key"};
  }
  if (!admin || access == Access::admin) return {};
  if (keys.admins()) {
    return {Code::forbidden,
            "This route needs an admin key (--admin-api-key); the key given is one of --api-key",
            {},
            "admin_key_required"};
  }
  return {Code::forbidden,
          "This route needs an admin key, and the server has none: start it with --admin-api-key or "
          "--admin-api-key-file",
          {},
          "no_admin_key"};
}

std::uint64_t random_seed() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

/// Of a path below /v1/ that no route has, clients are told where the routes are listed.
Status no_such_page(std::string_view path) {
  if (!path.starts_with("/v1/")) return {Code::not_found, "There is no such page", {}, "not_found"};
  return {
      Code::not_found,
      std::string(path.substr(0, 128)) + " is not offered by this server; /docs shows the routes that are",
      {},
      "not_offered"};
}

Output options_output(const Admission& admission) {
  Output output{.kind = Output::Kind::whole, .status = 204};
  output.headers.emplace_back("Allow", std::string(admission.match.allow));
  if (!admission.preflight) return output;
  output.headers.emplace_back("Access-Control-Allow-Methods", std::string(admission.match.allow));
  if (!admission.allow_headers.empty()) {
    output.headers.emplace_back("Access-Control-Allow-Headers", admission.allow_headers);
  }
  output.headers.emplace_back("Access-Control-Max-Age", "600");
  return output;
}

}  // namespace

std::string query_value(std::string_view target, std::string_view name) {
  std::size_t at = target.find('?');
  while (at != target.npos) {
    const std::string_view pair = target.substr(at + 1, target.find('&', at + 1) - at - 1);
    const std::size_t equals = pair.find('=');
    if (pair.substr(0, equals) == name && equals != pair.npos)
      return percent_decoded(pair.substr(equals + 1));
    at = target.find('&', at + 1);
  }
  return {};
}

std::string_view path_of(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!same_word(target.substr(0, scheme.size()), scheme)) continue;
    const std::size_t slash = target.find('/', scheme.size());
    target = slash == target.npos ? std::string_view("/") : target.substr(slash);
    break;
  }
  return target.substr(0, target.find('?'));
}

std::string_view sane_request_id(std::string_view given) {
  const bool sane = given.size() <= kMaxRequestId && std::all_of(given.begin(), given.end(), [](char c) {
                      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             std::string_view("-_.:/@+=").find(c) != std::string_view::npos;
                    });
  return sane ? given : std::string_view();
}

RequestHandler::RequestHandler(Hosts hosts, std::vector<std::string> allowed_origins,
                               const config::LimitOptions& limits, ModelFacts model, const Backend& backend,
                               std::string owner_salt, std::vector<ModelFacts> more_models)
    : hosts_(std::move(hosts)),
      origins_(std::move(allowed_origins)),
      limits_(limits),
      model_(std::move(model)),
      more_models_(std::move(more_models)),
      owner_salt_(std::move(owner_salt)),
      openapi_(openapi_document(limits, model_.sees)),
      backend_(backend) {}

/// Without a key on a loopback address Host must name this server: else any web page that resolves its own
/// name to this machine could use it. With --allowed-hosts it must in any case, but for health and for a
/// listener of its own for metrics: what probes and scrapes a server asks it by its address, which the list
/// need not have.
Status RequestHandler::check_host(const HeadView& head, const RouteMatch& match, const Entrance& entrance,
                                  bool keyless) const {
  const bool probed = match.serves(Handler::health) || match.serves(Handler::live) || entrance.open;
  const bool checked = (keyless && entrance.loopback) || (hosts_.listed() && !probed);
  if (!checked) return {};
  // In the absolute form the target names a host too, and that one would count.
  const std::string_view target = authority_of(head.target);
  const bool absent = head.host.empty() && head.host_optional;
  const bool served = absent || hosts_.serve(head.host, entrance.address);
  if (served && (target.empty() || hosts_.serve(target, entrance.address))) return {};
  return {
      Code::forbidden,
      "Host is \"" + std::string((served ? target : head.host).substr(0, 128)) +
          "\"; allowed are localhost, this machine's name, the address that the server listens on, and what "
          "--allowed-hosts lists",
      "Host", "host_not_allowed"};
}

Status RequestHandler::check_origin(const HeadView& head, const RouteMatch& match) const {
  if (!match.allowed || !match.route->acts() || !origins_.foreign(head.origin, head.fetch_site, head.host))
    return {};
  const std::string field = head.origin.empty() ? "Sec-Fetch-Site" : "Origin";
  const std::string_view value = head.origin.empty() ? head.fetch_site : head.origin;
  return {Code::forbidden,
          field + " is \"" + std::string(value.substr(0, 128)) +
              "\"; allowed are pages of this server and the origins that --allowed-origins lists",
          field, "origin_not_allowed"};
}

Admission RequestHandler::admit(const HeadView& head, const Entrance& entrance, const ApiKeys& keys) const {
  Admission admission{.match = match_route(head.method, path_of(head.target), entrance.pages)};
  const RouteMatch& match = admission.match;
  const bool events = match.serves(Handler::info) && match.route->info == InfoRequest::Kind::events;
  admission.tail = events ? query_value(head.target, "request") : percent_decoded(match.tail);
  admission.match.tail = {};  // a view of the head
  admission.head_only = head.method == "HEAD";
  if (match.serves(Handler::page)) {
    admission.if_none_match = head.if_none_match;
    admission.takes_gzip = accepts_gzip(head.accept_encoding);
  }
  admission.allow_origin = origins_.answer_to(head.origin);
  admission.vary_origin = origins_.vary();
  admission.preflight = !admission.allow_origin.empty() && !head.preflight_method.empty();
  if (admission.preflight) admission.allow_headers = allowed_headers(head.preflight_headers);
  admission.refusal = check_host(head, match, entrance, entrance.open || !keys.required());
  if (admission.refusal.ok()) admission.refusal = check_origin(head, match);
  if (admission.refusal.ok() && !entrance.open) admission.refusal = check_key(head, match.access(), keys);
  if (!admission.refusal.ok()) return admission;
  if (match.allow.empty()) {
    admission.refusal = no_such_page(path_of(head.target));
  } else if (!match.allowed && !match.options) {
    admission.refusal = {
        Code::invalid_argument, "This page takes " + std::string(match.allow), {}, "method_not_allowed"};
  } else if (head.encoded) {
    admission.refusal = {Code::invalid_argument, "A body must not be compressed", {}, "unsupported_encoding"};
  } else if (match.serves(Handler::json) && !is_json(head.content_type)) {
    admission.refusal = {
        Code::invalid_argument, "Content-Type must be application/json", {}, "unsupported_media_type"};
  } else if (match.serves(Handler::store)) {
    admission.store = {.resource = match.route->resource,
                       .verb = match.verb,
                       .id = admission.tail,
                       .owner = keys.owner(owner_salt_, head.authorization, head.x_api_key),
                       .after = query_value(head.target, "after"),
                       .limit = query_value(head.target, "limit"),
                       .order = query_value(head.target, "order"),
                       .purpose = query_value(head.target, "purpose")};
  }
  return admission;
}

Output RequestHandler::health(Handler handler, bool draining) const {
  Health health = backend_.health();
  if (draining) health.state = Health::State::draining;
  const bool good = handler == Handler::live ? health.live : health.live && health.ready();
  Output output{.kind = Output::Kind::whole};
  output.status = good ? 200 : 503;
  output.body = R"({"status":")" + std::string(to_string(health.state)) + '"';
  if (!health.silent.empty()) output.body += R"(,"silent":")" + std::string(health.silent) + '"';
  output.body += '}';
  if (!good) output.headers.emplace_back("Retry-After", "1");
  return output;
}

std::variant<Call, Output> RequestHandler::info(const Admission& admission, bool draining) const {
  InfoRequest request{.kind = admission.match.route->info};
  if (request.kind == InfoRequest::Kind::model) request.name = admission.tail;
  if (request.kind == InfoRequest::Kind::events) {
    if (admission.head_only) return Output{.kind = Output::Kind::whole, .content = Output::Content::events};
    if (draining) return error_output(0, not_serving(Health::State::draining));
    request.name = sane_request_id(admission.tail);
  }
  Call call;
  call.body = std::move(request);
  return call;
}

std::variant<Call, Output> RequestHandler::handle(const Admission& admission, std::string_view body,
                                                  std::string_view request_id, bool draining) const {
  if (admission.match.options) return options_output(admission);
  const Route& route = *admission.match.route;
  switch (route.handler) {
    case Handler::json: {
      const Status status = not_serving(draining ? Health::State::draining : backend_.health().state);
      if (!status.ok()) return error_output(0, status, 0, route.api);
      const std::size_t model =
          more_models_.empty() ? 0 : choose_model(model_of_body(body), model_, more_models_);
      const ModelFacts& facts = model == 0 ? model_ : more_models_[model - 1];
      auto parsed = route.parse(body, {limits_, facts, request_id, random_seed(), unix_seconds()});
      if (!parsed.ok()) return error_output(0, parsed.status(), 0, route.api);
      Call call;
      call.body = std::move(parsed->request);
      call.model = model;
      call.ignored_fields = std::move(parsed->ignored_fields);
      return call;
    }
    case Handler::info: return info(admission, draining);
    case Handler::store: {
      Call call;
      StoreRequest request = admission.store;
      request.body = body;
      call.body = std::move(request);
      return call;
    }
    case Handler::openapi: {
      Output output{.kind = Output::Kind::whole};
      output.body = openapi_;
      return output;
    }
    case Handler::page:
      return page_output(*find_page(admission.tail), admission.if_none_match, admission.takes_gzip);
    case Handler::health:
    case Handler::live: break;
  }
  return health(route.handler, draining);
}

}  // namespace troupe::http
