#pragma once
// What `troupe status` shows, as one JSON object:
//   {"model","state","url","ports":{"http","metrics","engine_worker_queue","cache_queue"},
//    "logs":{"dir","actor_dirs":{ACTOR: DIRECTORY}},
//    "role":"mixed"|"prefill"|"decode","peers":[{"role","port","pid","state","why"}],
//      (of those on other machines "address" instead of "port" and "pid")
//    "processes":[{"name","pid","uptime_s","restarts","state","last_end"}],
//    "queues":[{"name","depth","capacity"}],
//    "tokens":{"prompt","generated","prompt_per_s","generated_per_s"},
//    "kv_blocks":{"total","free","cached","leased","moving"},
//    "prefix_cache":{"prompt_tokens","cached_tokens","evicted_blocks"},
//    "swap_space":{"total","free","cached","moving","out_blocks","in_blocks","evicted_blocks","failed_blocks",
//                  "declined_blocks"},
//    "media":{"file_bytes","file_limit","patch_bytes","patch_limit","cached_bytes","cached_limit",
//             "cached_entries","hits","misses","decodes_running","decodes_waiting","requests_waiting",
//             "refused"}}
// A peer's role is its own. engine_worker_queue and cache_queue are numbers; of several ranks, one for each,
// in a list. url is where a client on this machine reaches the server; paths are absolute. Depth and capacity
// of a ring are bytes; those of the engine's own queues are requests.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log_options.h"
#include "base/status.h"

namespace troupe::supervisor {

struct ProcessRow {
  std::string name;
  std::int64_t pid = 0;  ///< 0 while there is none
  double uptime_s = 0;
  int restarts = 0;
  std::string state;
  std::string last_end;  ///< why it was restarted last; empty: it was not
};

/// Another instance that this one shares its work with; front and engine are on different machines.
struct PeerRow {
  std::string role;      ///< the other's: prefill, decode, front or engine
  int port = 0;          ///< of a prefill instance: its engine-worker-queue port; 0 of a decode instance
  std::int64_t pid = 0;  ///< of its supervisor; 0: none is known
  std::string state;     ///< absent, refused, joining, joined
  std::string why;       ///< it was refused, or is absent
  std::string address;   ///< of an engine, where it listens; of a front, its node and where it comes from
};

struct QueueRow {
  std::string name;
  std::int64_t depth = 0;
  std::int64_t capacity = 0;
};

struct KvBlocks {
  std::int64_t total = 0, free = 0, cached = 0, leased = 0, moving = 0;
};

/// Tokens since the engine's start: of the prompts of admitted sequences, and generated.
struct TokenTotals {
  /// Tokens per second over the last few seconds.
  struct Rates {
    double prompt_per_s = 0;
    double generated_per_s = 0;
  };
  std::int64_t prompt = 0;
  std::int64_t generated = 0;
};

/// Tokens count since the engine's start, blocks since the worker's.
struct PrefixCacheTotals {
  std::int64_t prompt_tokens = 0;  ///< of admitted sequences
  std::int64_t cached_tokens = 0;  ///< of these, found and not computed
  std::int64_t evicted_blocks = 0;
};

/// Blocks, and how many were copied, lost and not copied since the worker's start. total 0: no swap space.
struct SwapSpaceTotals {
  std::int64_t total = 0, free = 0, cached = 0, moving = 0;
  std::int64_t out_blocks = 0, in_blocks = 0, evicted_blocks = 0, failed_blocks = 0, declined_blocks = 0;
};

/// What the front holds of images and videos, and has counted since its start. Without limits: the model does
/// not see.
struct MediaTotals {
  std::int64_t file_bytes = 0, file_limit = 0, patch_bytes = 0, patch_limit = 0;
  std::int64_t cached_bytes = 0, cached_limit = 0, cached_entries = 0;
  std::int64_t hits = 0, misses = 0;
  std::int64_t decodes_running = 0, decodes_waiting = 0, requests_waiting = 0;
  std::int64_t refused = 0;
};
/// Their names on the page and in what the front says.
inline constexpr std::pair<const char*, std::int64_t MediaTotals::*> kMediaTotals[] = {
    {"file_bytes", &MediaTotals::file_bytes},
    {"file_limit", &MediaTotals::file_limit},
    {"patch_bytes", &MediaTotals::patch_bytes},
    {"patch_limit", &MediaTotals::patch_limit},
    {"cached_bytes", &MediaTotals::cached_bytes},
    {"cached_limit", &MediaTotals::cached_limit},
    {"cached_entries", &MediaTotals::cached_entries},
    {"hits", &MediaTotals::hits},
    {"misses", &MediaTotals::misses},
    {"decodes_running", &MediaTotals::decodes_running},
    {"decodes_waiting", &MediaTotals::decodes_waiting},
    {"requests_waiting", &MediaTotals::requests_waiting},
    {"refused", &MediaTotals::refused}};

struct StatusPage {
  std::string model;
  std::string state;  ///< loading, ready, draining, restarting
  std::string url;
  LogOptions logs;  ///< only its directories
  int http_port = 0;
  int metrics_port = 0;                        ///< the HTTP port when it has none of its own
  std::vector<int> engine_worker_queue_ports;  ///< by rank
  std::vector<int> cache_queue_ports;          ///< likewise
  std::string role = "mixed";                  ///< --splitwise-role
  std::vector<PeerRow> peers;
  std::vector<ProcessRow> processes;
  std::vector<QueueRow> queues;
  TokenTotals tokens;
  TokenTotals::Rates rates;
  KvBlocks kv_blocks;
  PrefixCacheTotals prefix_cache;
  SwapSpaceTotals swap_space;
  MediaTotals media;
};

std::string to_json(const StatusPage& page);

/// The page of the instance that has `port`, one line of JSON without its end. Errors: not_found when none
/// has it, timeout.
Result<std::string> query_status(const std::string& runtime_dir, int port,
                                 Duration patience = std::chrono::seconds(3));

}  // namespace troupe::supervisor
