#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/gateway/http_side.h"
#include "actors/protocol.h"
#include "actors/session/session_host_actor.h"

namespace troupe {

struct GatewayParts {
  std::vector<session_host_actor> hosts;  ///< by I/O thread
  metrics_actor metrics;
  std::shared_ptr<HealthCell> health;
  Deliver deliver;
  std::string config_json;       ///< what /config-info answers; no secrets
  std::int32_t max_open = 512;   ///< requests inside at once; one more is refused
  Log log;
};

struct GatewayState {
  static inline const char* name = "gateway";
  GatewayParts parts;
  std::int32_t open = 0;
  bool draining = false;
  bool linked = false;
  std::optional<caf::typed_response_promise<bool>> drained;
};

/// GATEWAY: admission by credit. An Ask holds one credit until its SESSION HOST has answered Closed.
gateway_actor::behavior_type gateway_behavior(gateway_actor::stateful_pointer<GatewayState> self, GatewayParts parts);

}  // namespace troupe
