#include "actors/gateway/gateway_actor.h"

#include "http/openai_error.h"

namespace troupe {
namespace {

using Self = gateway_actor::stateful_pointer<GatewayState>;

void publish_health(GatewayState& state) {
  using State = http::Health::State;
  const State now = state.parts.health->get();
  if (state.draining) {
    state.parts.health->set(State::draining);
  } else if (state.linked) {
    state.parts.health->set(State::ready);
  } else if (now == State::ready) {
    state.parts.health->set(State::restarting);
  }
}

void refuse(GatewayState& state, const Ask& ask, const Status& status) {
  state.parts.log.info("refused", {kv("req", ask.request_id), kv("code", to_string(status.code)), kv("why", status.message)});
  deliver_one(state.parts.deliver, ask.io, http::error_output(ask.exchange, status));
}

Status admissible(const GatewayState& state) {
  if (state.draining) return failure(Code::unavailable, "the server is shutting down and takes no new requests");
  if (!state.linked) return failure(Code::unavailable, "the model is not ready yet: try again in a moment");
  if (state.open >= state.parts.max_open) {
    Status full = failure(Code::overloaded, "there are " + std::to_string(state.open) + " requests inside, the most "
                          "that --max-concurrency allows: try again later");
    full.reason = "queue_full";
    return full;
  }
  return {};
}

void close_one(GatewayState& state) {
  --state.open;
  if (state.open == 0 && state.drained) {
    state.drained->deliver(true);
    state.drained.reset();
  }
}

void admit(Self self, Ask& ask) {
  auto& state = self->state;
  if (const Status status = admissible(state); !status.ok()) {
    refuse(state, ask, status);
    return;
  }
  ++state.open;
  state.parts.log.debug("admitted", {kv("req", ask.request_id), kv("open", state.open)});
  const auto& host = state.parts.hosts[ask.io % state.parts.hosts.size()];
  const auto exchange = ask.exchange;
  const auto io = ask.io;
  self->request(host, caf::infinite, std::move(ask))
      .then([self](const Closed&) { close_one(self->state); },
            [self, exchange, io](const caf::error&) {
              const Status lost = failure(Code::internal, "the request's session was lost");
              deliver_one(self->state.parts.deliver, io, http::error_output(exchange, lost));
              close_one(self->state);
            });
}

void dispatch(Self self, Ask& ask) {
  auto& state = self->state;
  if (ask.api == Api::config_info) {
    deliver_one(state.parts.deliver, ask.io, page_output(ask.exchange, state.parts.config_json));
  } else if (ask.api == Api::metrics) {
    self->request(state.parts.metrics, caf::infinite, caf::get_atom::value)
        .then(
            [self, ask](std::string& text) {
              deliver_one(self->state.parts.deliver, ask.io,
                          page_output(ask.exchange, std::move(text), http::Output::Content::metrics));
            },
            [self, ask](const caf::error&) {
              refuse(self->state, ask, failure(Code::unavailable, "the metrics are being restarted"));
            });
  } else {
    admit(self, ask);
  }
}

caf::typed_response_promise<bool> drain(Self self) {
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

}  // namespace

gateway_actor::behavior_type gateway_behavior(Self self, GatewayParts parts) {
  self->state.parts = std::move(parts);
  return {
      [self](Ask& ask) { dispatch(self, ask); },
      [self](const Withdraw& gone) {
        auto& hosts = self->state.parts.hosts;
        self->send(hosts[gone.io % hosts.size()], gone);
      },
      [self](const LinkUp&) {
        self->state.linked = true;
        publish_health(self->state);
      },
      [self](const LinkDown&) {
        self->state.linked = false;
        publish_health(self->state);
      },
      [self](const Drain&) { return drain(self); },
      [self](const Abandon& abandon) {
        for (const auto& host : self->state.parts.hosts) self->send(host, abandon);
      },
      [self](caf::get_atom) { return status(self->state); },
  };
}

}  // namespace troupe
