#pragma once
// Label values of HTTP counters: a fixed set, so that clients cannot create new series.
#include <array>
#include <string_view>

namespace troupe::metrics {

/// The path when it is a known route, else "other".
constexpr std::string_view route_label(std::string_view path) {
  constexpr std::array<std::string_view, 19> kRoutes = {
      "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
      "/v1/models",           "/tokenize",       "/detokenize",   "/health",      "/health/live",
      "/health/ready",        "/ping",           "/metrics",      "/config-info", "/openapi.json",
      "/",                    "/topology",        "/docs",        "/v1/troupe/events"};
  for (const std::string_view route : kRoutes) {
    if (path == route) return route;
  }
  if (path.starts_with("/pages/")) return "/pages";
  return path.starts_with("/v1/models/") ? "/v1/models" : "other";
}

/// True for the paths of generation requests.
constexpr bool is_generation(std::string_view path) {
  return path == "/v1/chat/completions" || path == "/v1/completions" || path == "/v1/responses" || path == "/v1/messages";
}

}  // namespace troupe::metrics
