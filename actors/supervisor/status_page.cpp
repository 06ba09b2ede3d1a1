#include "actors/supervisor/status_page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "actors/supervisor/local_requests.h"

namespace troupe::supervisor {

namespace {

using Json = nlohmann::ordered_json;

Json one_or_all(const std::vector<int>& ports) {
  return ports.size() == 1 ? Json(ports.front()) : Json(ports);
}

}  // namespace

std::string to_json(const StatusPage& page) {
  Json processes = Json::array();
  for (const ProcessRow& row : page.processes) {
    processes.push_back(Json{{"name", row.name},
                             {"pid", row.pid},
                             {"uptime_s", std::round(row.uptime_s * 10) / 10},
                             {"restarts", row.restarts},
                             {"state", row.state},
                             {"last_end", row.last_end}});
  }
  Json peers = Json::array();
  for (const PeerRow& row : page.peers) {
    Json peer = row.address.empty() ? Json{{"role", row.role}, {"port", row.port}, {"pid", row.pid}}
                                    : Json{{"role", row.role}, {"address", row.address}};
    peer["state"] = row.state;
    peer["why"] = row.why;
    peers.push_back(std::move(peer));
  }
  Json queues = Json::array();
  for (const QueueRow& row : page.queues) {
    queues.push_back(Json{{"name", row.name}, {"depth", row.depth}, {"capacity", row.capacity}});
  }
  Json media = Json::object();
  for (const auto& [name, count] : kMediaTotals) media[name] = page.media.*count;
  const Json text{{"model", page.model},
                  {"state", page.state},
                  {"url", page.url},
                  {"ports", Json{{"http", page.http_port},
                                 {"metrics", page.metrics_port},
                                 {"engine_worker_queue", one_or_all(page.engine_worker_queue_ports)},
                                 {"cache_queue", one_or_all(page.cache_queue_ports)}}},
                  {"logs", Json{{"dir", page.logs.dir}, {"actor_dirs", page.logs.actor_dirs}}},
                  {"role", page.role},
                  {"peers", peers},
                  {"processes", processes},
                  {"queues", queues},
                  {"tokens", Json{{"prompt", page.tokens.prompt},
                                  {"generated", page.tokens.generated},
                                  {"prompt_per_s", std::round(page.rates.prompt_per_s * 10) / 10},
                                  {"generated_per_s", std::round(page.rates.generated_per_s * 10) / 10}}},
                  {"kv_blocks", Json{{"total", page.kv_blocks.total},
                                     {"free", page.kv_blocks.free},
                                     {"cached", page.kv_blocks.cached},
                                     {"leased", page.kv_blocks.leased},
                                     {"moving", page.kv_blocks.moving}}},
                  {"prefix_cache", Json{{"prompt_tokens", page.prefix_cache.prompt_tokens},
                                        {"cached_tokens", page.prefix_cache.cached_tokens},
                                        {"evicted_blocks", page.prefix_cache.evicted_blocks}}},
                  {"swap_space", Json{{"total", page.swap_space.total},
                                      {"free", page.swap_space.free},
                                      {"cached", page.swap_space.cached},
                                      {"moving", page.swap_space.moving},
                                      {"out_blocks", page.swap_space.out_blocks},
                                      {"in_blocks", page.swap_space.in_blocks},
                                      {"evicted_blocks", page.swap_space.evicted_blocks},
                                      {"failed_blocks", page.swap_space.failed_blocks},
                                      {"declined_blocks", page.swap_space.declined_blocks}}},
                  {"media", media}};
  return text.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::string> query_status(const std::string& runtime_dir, int port, Duration patience) {
  return ask_supervisor(runtime_dir, port, {}, patience);
}

}  // namespace troupe::supervisor
