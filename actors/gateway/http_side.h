#pragma once
// GATEWAY's HTTP side: what the I/O threads call. It resolves requests, answers what needs no actor, and
// sends the rest to the GATEWAY actor. The only class that knows both http/ and actors.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/gateway/request_resolver.h"
#include "actors/messages.h"
#include "actors/metrics/routes.h"
#include "base/log.h"
#include "http/backend.h"
#include "http/openai_response.h"

namespace troupe {

/// Readiness, written by the GATEWAY actor and read by every I/O thread.
class HealthCell {
 public:
  void set(http::Health::State state) { state_.store(state, std::memory_order_release); }
  http::Health::State get() const { return state_.load(std::memory_order_acquire); }

 private:
  std::atomic<http::Health::State> state_{http::Health::State::loading};
};

/// The ways from an I/O thread into the engine. All are thread-safe and never block.
struct GatewayPorts {
  std::function<void(Ask&&)> ask;
  std::function<void(Withdraw)> withdraw;
  std::function<void(HttpStats&&)> count;
  std::function<void(std::uint32_t io, std::vector<http::Output>&&)> deliver;
};

/// A whole answer that is no error.
http::Output page_output(std::uint64_t exchange, std::string body,
                         http::Output::Content content = http::Output::Content::json);

/// One output to one I/O thread.
void deliver_one(const decltype(GatewayPorts::deliver)& deliver, std::uint32_t io, http::Output output);

class HttpSide final : public http::Backend {
 public:
  HttpSide(GatewayPorts ports, RequestResolver resolver, std::vector<http::ModelCard> models,
           std::shared_ptr<const HealthCell> health, Log log);

  void submit(http::Call&& call) override;
  void cancel(http::Exchange exchange) override;
  http::Health health() const override { return {true, health_->get()}; }
  void answered(const http::AccessRecord& record) override;

  /// Generation requests answered well so far: the supervisor forgives earlier deaths for them.
  std::uint64_t served() const { return served_.load(std::memory_order_relaxed); }

 private:
  void answer(const http::Call& call, http::Output output) const;
  void models(const http::Call& call, const http::InfoRequest& page) const;

  const GatewayPorts ports_;
  const RequestResolver resolver_;
  const std::vector<http::ModelCard> models_;
  const std::shared_ptr<const HealthCell> health_;
  const Log log_;
  std::atomic<std::uint64_t> served_{0};
};

}  // namespace troupe
