#include "actors/gateway/gateway_actor.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "actors/gateway/parameters_log.h"
#include "base/contain.h"
#include "base/counted.h"
#include "http/api/openai_error.h"
#include "http/server/routes.h"

namespace troupe {
namespace {

using GatewaySelf = gateway_actor::stateful_pointer<GatewayState>;

/// A whole answer that is no error.
http::Output page_output(std::uint64_t exchange, std::string body,
                         http::Output::Content content = http::Output::Content::json) {
  http::Output output{.exchange_id = exchange, .kind = http::Output::Kind::whole, .content = content};
  output.body = std::move(body);
  return output;
}

/// One output to one I/O thread.
void deliver_one(const Deliver& deliver, std::uint32_t io, http::Output output) {
  std::vector<http::Output> outputs;
  outputs.push_back(std::move(output));
  deliver(io, std::move(outputs));
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ",") + name;
  return out;
}

void publish_health(GatewayState& state) {
  using State = http::Health::State;
  const State now = state.parts.health->get();
  if (state.draining) {
    state.parts.health->set(State::draining);
  } else if (!state.serving.empty() && state.texts.size() == state.parts.texts) {
    state.ever_ready = true;
    state.parts.health->set(State::ready);
  } else if (now == State::ready) {
    state.parts.health->set(State::restarting);
  }
}

template <class AnyAsk>
void refuse(GatewayState& state, const AnyAsk& ask, const Status& status, Api api = Api::chat) {
  state.parts.log.info(
      "refused", {kv("req", ask.request_id), kv("code", to_string(status.code)), kv("why", status.message)});
  deliver_one(state.parts.deliver, ask.io, http::error_output(ask.exchange, status, 0, api));
}

Status admissible(const GatewayState& state, bool background) {
  if (state.draining)
    return failure(Code::unavailable, "the server is shutting down and takes no new requests");
  if (!state.ever_ready)
    return failure(Code::unavailable, "the model is not ready yet: try again in a moment");
  if (!background && state.open - state.open_in_background >= state.parts.max_open) {
    Status full = failure(Code::overloaded,
                          counted(state.open - state.open_in_background, "request") +
                              " in progress, the most that --max-concurrency allows: try again later");
    full.reason = "queue_full";
    return full;
  }
  return {};
}

void close_one(GatewayState& state, bool background) {
  --state.open;
  if (background) --state.open_in_background;
  if (state.open == 0 && state.drained) {
    state.drained->deliver(true);
    state.drained.reset();
  }
}

void admit(GatewaySelf self, Ask& ask) {
  auto& state = self->state;
  if (const Status status = admissible(state, ask.background); !status.ok()) {
    refuse(state, ask, status, ask.api);
    return;
  }
  ++state.open;
  if (ask.background) ++state.open_in_background;
  state.parts.log.stage("admitted", {kv("req", ask.request_id), kv("open", state.open)});
  const auto& host = state.parts.hosts[ask.io % state.parts.hosts.size()];
  const auto exchange = ask.exchange;
  const auto io = ask.io;
  const auto api = ask.api;
  const bool background = ask.background;
  const auto patience = std::chrono::nanoseconds(ask.timeout_ns) + kAfterTimeout;
  auto pending = self->request(host, patience, std::move(ask));
  pending.then(
      [self, background, end_deadline = deadline_end(self, pending)](const Closed&) {
        end_deadline();
        close_one(self->state, background);
      },
      [self, host, exchange, io, api, background,
       end_deadline = deadline_end(self, pending)](const caf::error&) {
        end_deadline();
        self->send(host, Withdraw{io, exchange});
        const Status lost = failure(Code::internal, "the request's session was lost");
        deliver_one(self->state.parts.deliver, io, http::error_output(exchange, lost, 0, api));
        close_one(self->state, background);
      });
}

/// Of this engine and those after it; `forgotten` blocks of those before it were.
void reset_prefix_caches(GatewaySelf self, const InfoAsk& ask, std::size_t engine, std::int64_t forgotten) {
  const auto& parts = self->state.parts;
  if (engine == parts.blocks.size()) {
    return deliver_one(
        parts.deliver, ask.io,
        page_output(ask.exchange, R"({"forgotten_blocks":)" + std::to_string(forgotten) + "}"));
  }
  if (engine >= parts.own_engines && !self->state.serving.contains(static_cast<std::uint32_t>(engine)))
    return reset_prefix_caches(self, ask, engine + 1, forgotten);
  self->request(parts.blocks[engine], kTurnPatience, ResetPrefixCache{})
      .then([=](std::int32_t blocks) { reset_prefix_caches(self, ask, engine + 1, forgotten + blocks); },
            [=](const caf::error&) {
              refuse(self->state, ask, failure(Code::unavailable, "the engine is being restarted"));
            });
}

void inform(GatewaySelf self, const InfoAsk& ask) {
  using Kind = http::InfoRequest::Kind;
  auto& parts = self->state.parts;
  if (ask.kind == Kind::metrics) {
    self->request(parts.metrics, kTurnPatience, caf::get_atom::value)
        .then(
            [self, ask](std::string& text) {
              deliver_one(self->state.parts.deliver, ask.io,
                          page_output(ask.exchange, std::move(text), http::Output::Content::metrics));
            },
            [self, ask](const caf::error&) {
              refuse(self->state, ask, failure(Code::unavailable, "the metrics are being restarted"));
            });
  } else if (ask.kind == Kind::reset_prefix_cache) {
    reset_prefix_caches(self, ask, 0, 0);
  } else {
    deliver_one(parts.deliver, ask.io, page_output(ask.exchange, parts.config_json));
  }
}

/// An exception ends the request alone. Its place among the open ones is given back, as nothing will be heard
/// of it.
void take(GatewaySelf self, Ask& ask) {
  auto& state = self->state;
  const auto open = state.open;
  const std::uint64_t exchange = ask.exchange;
  const std::uint32_t io = ask.io;
  const auto api = ask.api;
  const bool background = ask.background;
  const std::string request_id = ask.request_id;
  const Status fault = contain(state.parts.log, "gateway", request_id, [&] { admit(self, ask); });
  if (fault.ok()) return;
  deliver_one(state.parts.deliver, io, http::error_output(exchange, fault, 0, api));
  if (state.open > open) close_one(state, background);
}

caf::typed_response_promise<bool> drain(GatewaySelf self) {
  auto& state = self->state;
  state.draining = true;
  publish_health(state);
  state.parts.log.info("draining", {kv("open", state.open)});
  state.drained = self->make_response_promise<bool>();
  auto promise = *state.drained;
  if (state.open == 0) {
    state.drained->deliver(true);
    state.drained.reset();
  }
  return promise;
}

EngineStatus status(const GatewayState& state) {
  EngineStatus out;
  out.state = std::string(http::to_string(state.parts.health->get()));
  out.open_requests = state.open;
  out.max_requests = state.parts.max_open;
  return out;
}

Ask ask_of(http::Call&& call) {
  return {std::get<http::Request>(std::move(call.body)),
          call.exchange.io,
          call.exchange.id,
          std::move(call.request_id),
          std::chrono::nanoseconds(call.received.time_since_epoch()).count(),
          static_cast<std::int64_t>(call.body_bytes),
          std::move(call.client)};
}

}  // namespace

gateway_actor::behavior_type gateway_behavior(GatewaySelf self, GatewayParts parts) {
  answer_probes(self);
  self->state.parts = std::move(parts);
  return {
      answer_beat,
      [self](Ask& ask) { take(self, ask); },
      [self](const InfoAsk& ask) {
        const auto& parts = self->state.parts;
        const Status fault = contain(parts.log, "gateway", ask.request_id, [&] { inform(self, ask); });
        if (!fault.ok()) deliver_one(parts.deliver, ask.io, http::error_output(ask.exchange, fault));
      },
      [self](const Withdraw& gone) {
        auto& hosts = self->state.parts.hosts;
        self->send(hosts[gone.io % hosts.size()], gone);
      },
      [self](const EngineServes& engine) {
        if (engine.serves) {
          self->state.serving.insert(engine.engine);
        } else {
          self->state.serving.erase(engine.engine);
        }
        publish_health(self->state);
      },
      [self](const TextUp& up) {
        self->state.texts.insert(up.index);
        publish_health(self->state);
      },
      [self](const Drain&) { return drain(self); },
      [self](const Abandon& abandon) {
        for (const auto& host : self->state.parts.hosts) self->send(host, abandon);
      },
      [self](caf::get_atom) { return status(self->state); },
  };
}

HttpSide::HttpSide(std::vector<http::ModelCard> models, std::shared_ptr<const HealthCell> health,
                   Deliver deliver, Log log)
    : models_(std::move(models)),
      health_(std::move(health)),
      deliver_(std::move(deliver)),
      log_(std::move(log)) {}

void HttpSide::connect(gateway_actor gateway, metrics_actor metrics, LiveFeed* feed,
                       http::BatchService* batches) {
  batches_ = batches;
  gateway_ = std::move(gateway);
  metrics_ = std::move(metrics);
  feed_ = feed;
}

void HttpSide::add_model(gateway_actor gateway, std::shared_ptr<const HealthCell> health,
                         std::shared_ptr<MergedPages> pages) {
  more_gateways_.push_back(std::move(gateway));
  more_health_.push_back(std::move(health));
  pages_ = std::move(pages);
}

void HttpSide::disconnect() {
  connect({}, {}, nullptr, nullptr);
  more_gateways_.clear();
  pages_.reset();
}

http::Health HttpSide::health() const {
  using State = http::Health::State;
  const auto worse = [](State a, State b) {
    for (const State one : {State::draining, State::loading, State::restarting}) {
      if (a == one || b == one) return one;
    }
    return State::ready;
  };
  http::Health all = health_->health();
  for (const auto& more : more_health_) {
    const http::Health one = more->health();
    all.live = all.live && one.live;
    all.state = worse(all.state, one.state);
    if (all.silent.empty()) all.silent = one.silent;
  }
  return all;
}

/// A page that actors answer. Of several models what is about each of them is put together.
void HttpSide::ask_page(const http::Call& call, http::InfoRequest::Kind kind) {
  using Kind = http::InfoRequest::Kind;
  if (pages_ == nullptr || (kind != Kind::metrics && kind != Kind::reset_prefix_cache)) {
    caf::anon_send(gateway_, InfoAsk{call.exchange.io, call.exchange.id, call.request_id, kind});
    return;
  }
  const InfoAsk ask{MergedPages::kIo, pages_->begin(call.exchange, kind), call.request_id, kind};
  caf::anon_send(gateway_, ask);
  for (const auto& gateway : more_gateways_) caf::anon_send(gateway, ask);
}

Result<std::unique_ptr<http::BodySink>> HttpSide::receive(std::string_view content_type) {
  return batches_ == nullptr ? Backend::receive(content_type) : batches_->receive(content_type);
}

void HttpSide::submit(http::Call&& call) {
  if (std::holds_alternative<http::StoreRequest>(call.body)) {
    if (batches_ != nullptr) return batches_->submit(std::move(call));
    deliver_one(deliver_, call.exchange.io,
                http::error_output(call.exchange.id, Backend::receive({}).status()));
    return;
  }
  if (const auto* page = std::get_if<http::InfoRequest>(&call.body)) {
    if (page->kind == http::InfoRequest::Kind::models || page->kind == http::InfoRequest::Kind::model) {
      models(call, *page);
      return;
    }
    if (page->kind == http::InfoRequest::Kind::version) {
      deliver_one(deliver_, call.exchange.io,
                  page_output(call.exchange.id, R"({"version":")" TROUPE_VERSION R"("})"));
      return;
    }
    if (page->kind == http::InfoRequest::Kind::events) {
      const Status status = feed_ == nullptr ? failure(Code::unavailable, "the engine is being restarted")
                                             : feed_->watch(call.exchange, page->name);
      if (!status.ok()) deliver_one(deliver_, call.exchange.io, http::error_output(call.exchange.id, status));
      return;
    }
    ask_page(call, page->kind);
    return;
  }
  if (!call.ignored_fields.empty()) {
    if (const auto requests = unknown_field_lines_.admit(Clock::now())) {
      log_.warning("unknown_fields", {kv("req", call.request_id), kv("fields", joined(call.ignored_fields)),
                                      kv("requests", requests)});
    }
  }
  const std::size_t model = call.model;
  Ask ask = ask_of(std::move(call));
  if (log_.details(2)) {
    const Status fault = contain(log_, "request", ask.request_id, [&] { log_parameters(log_, ask); });
    if (!fault.ok()) {
      deliver_one(deliver_, ask.io, http::error_output(ask.exchange, fault, 0, ask.api));
      return;
    }
  }
  caf::anon_send(model == 0 ? gateway_ : more_gateways_.at(model - 1), std::move(ask));
}

void HttpSide::cancel(http::Exchange exchange) {
  if (feed_ != nullptr && feed_->leave(exchange)) return;
  caf::anon_send(gateway_, Withdraw{exchange.io, exchange.id});
  for (const auto& gateway : more_gateways_) caf::anon_send(gateway, Withdraw{exchange.io, exchange.id});
}

void HttpSide::answered(const http::AccessRecord& record) {
  const double ms = std::chrono::duration<double, std::milli>(record.duration).count();
  log_.info("answered", {kv("req", record.request_id), kv("method", record.method), kv("path", record.target),
                         kv("status", record.status), kv("bytes", record.bytes), kv("ms", ms)});
  const bool generates = record.route != nullptr && record.route->generates();
  if (record.status == 200 && !record.failed && generates) served_.fetch_add(1, std::memory_order_relaxed);
  caf::anon_send(metrics_,
                 HttpStats{std::string(http::metrics_label(record.route)), record.status, generates});
}

void HttpSide::turned_away(std::string_view address, const Status& why) {
  caf::anon_send(metrics_, DoorStats{.turned_away = 1});
  if (const auto connections = turned_away_lines_.admit(Clock::now())) {
    log_.warning("turned_away",
                 {kv("address", address), kv("why", why.message), kv("connections", connections)});
  }
}

void HttpSide::handshake_failed(std::string_view address, std::string_view why) {
  caf::anon_send(metrics_, DoorStats{.failed_handshakes = 1});
  if (const auto connections = handshake_lines_.admit(Clock::now())) {
    log_.info("handshake_failed", {kv("address", address), kv("why", why), kv("connections", connections)});
  }
}

void HttpSide::faulted(http::FaultPlace place, std::string_view what, std::uint64_t faults) {
  if (metrics_) caf::anon_send(metrics_, DoorStats{.faults = static_cast<std::int32_t>(faults)});
  if (fault_logged_[static_cast<std::size_t>(place)].exchange(true)) return;
  log_.error("http_fault", {kv("place", to_string(place)), kv("what", what)});
}

void HttpSide::models(const http::Call& call, const http::InfoRequest& page) const {
  if (page.kind == http::InfoRequest::Kind::models) {
    deliver_one(deliver_, call.exchange.io, page_output(call.exchange.id, http::format_models(models_)));
    return;
  }
  const auto card =
      std::find_if(models_.begin(), models_.end(), [&](const auto& m) { return m.id == page.name; });
  if (card == models_.end()) {
    Status status = failure(Code::not_found, "model \"" + page.name.substr(0, 64) + "\" is not served here");
    status.param = "model";
    status.reason = "model_not_found";
    deliver_one(deliver_, call.exchange.io, http::error_output(call.exchange.id, status));
    return;
  }
  deliver_one(deliver_, call.exchange.io, page_output(call.exchange.id, http::format_model(*card)));
}

}  // namespace troupe
