#pragma once
// GATEWAY: where requests come from the I/O threads into the engine. HttpSide is what those threads call: it
// answers what needs no actor, and sends the rest to the actor, which admits or refuses.
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "actors/front/live_feed.h"
#include "actors/gateway/merged_pages.h"
#include "actors/health_cell.h"
#include "actors/protocol.h"
#include "actors/session/session_host_actor.h"
#include "base/log.h"
#include "base/rate_limit.h"
#include "http/api/openai_response.h"
#include "http/batch/batch_service.h"
#include "http/server/backend.h"

namespace troupe {

struct GatewayParts {
  std::vector<session_host_actor> hosts;  ///< by I/O thread
  metrics_actor metrics;
  std::vector<published_blocks_actor> blocks;  ///< by engine
  std::shared_ptr<HealthCell> health;
  Deliver deliver;
  std::string config_json;      ///< what /config-info answers; no secrets
  std::int32_t max_open = 512;  ///< open requests; one more is refused
  std::size_t texts = 0;        ///< text processes; ready when each has come once
  Log log;
  /// So many of the engines belong to this server; others need not be there.
  std::size_t own_engines = std::numeric_limits<std::size_t>::max();
};

struct GatewayState {
  static inline const char* name = "gateway";
  GatewayParts parts;
  std::int32_t open = 0;
  std::int32_t open_in_background = 0;  ///< of these, that do not count for max_open
  bool draining = false;
  std::set<std::uint32_t> serving;  ///< engines that can serve
  bool ever_ready = false;          ///< what comes while a process is replaced waits for it
  std::set<std::uint32_t> texts;    ///< text processes that have come
  std::optional<caf::typed_response_promise<bool>> drained;
};

/// GATEWAY: admission by credit. An Ask holds one credit until its SESSION HOST has answered Closed.
gateway_actor::behavior_type gateway_behavior(gateway_actor::stateful_pointer<GatewayState> self,
                                              GatewayParts parts);

class HttpSide final : public http::Backend {
 public:
  HttpSide(std::vector<http::ModelCard> models, std::shared_ptr<const HealthCell> health, Deliver deliver,
           Log log);

  /// Names the actors, who serves the live state, and who has files and batches (null: nobody), before an I/O
  /// thread runs.
  void connect(gateway_actor gateway, metrics_actor metrics, LiveFeed* feed,
               http::BatchService* batches = nullptr);
  /// Names the GATEWAY of one more model, Call::model by the order of calls, and whether it is ready.
  /// `pages`: where the models' pages become one. After connect(), before an I/O thread runs.
  void add_model(gateway_actor gateway, std::shared_ptr<const HealthCell> health,
                 std::shared_ptr<MergedPages> pages);
  /// Forgets them, after the last I/O thread has ended: no handle may outlive the actor system.
  void disconnect();

  void submit(http::Call&& call) override;
  Result<std::unique_ptr<http::BodySink>> receive(std::string_view content_type) override;
  void cancel(http::Exchange exchange) override;
  /// Of several models: ready when all are.
  http::Health health() const override;
  void answered(const http::AccessRecord& record) override;
  void turned_away(std::string_view address, const Status& why) override;
  void handshake_failed(std::string_view address, std::string_view why) override;
  void faulted(http::FaultPlace place, std::string_view what, std::uint64_t faults) override;

  /// Generation requests that ended without an error: the supervisor forgives earlier deaths for them.
  std::uint64_t served() const { return served_.load(std::memory_order_relaxed); }

 private:
  void models(const http::Call& call, const http::InfoRequest& page) const;
  void ask_page(const http::Call& call, http::InfoRequest::Kind kind);

  gateway_actor gateway_;                                       // of the first model
  std::vector<gateway_actor> more_gateways_;                    // of the others
  std::vector<std::shared_ptr<const HealthCell>> more_health_;  // likewise
  std::shared_ptr<MergedPages> pages_;                          // null: one model
  metrics_actor metrics_;
  LiveFeed* feed_ = nullptr;
  http::BatchService* batches_ = nullptr;
  const std::vector<http::ModelCard> models_;
  const std::shared_ptr<const HealthCell> health_;
  const Deliver deliver_;
  const Log log_;
  std::atomic<std::uint64_t> served_{0};
  // Hostile clients could fill the log with these.
  RateLimit turned_away_lines_{std::chrono::seconds(1)};
  RateLimit handshake_lines_{std::chrono::seconds(1)};
  RateLimit unknown_field_lines_{std::chrono::seconds(1)};
  std::array<std::atomic<bool>, http::kFaultPlaces> fault_logged_{};
};

}  // namespace troupe
