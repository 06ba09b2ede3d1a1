#pragma once
// What actors tell METRICS, and what ROOT asks them about themselves: data only, as in actors/messages.h.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/metrics/draft_counts.h"
#include "actors/metrics/gap_counts.h"
#include "actors/metrics/process_report.h"

namespace troupe {

/// Counters of one step, from SCHEDULER to METRICS.
struct StepStats {
  std::int32_t running = 0;
  std::int32_t waiting = 0;
  std::int32_t prompt_tokens = 0;  ///< run through the model in this step
  std::int32_t generated_tokens = 0;
  std::int32_t preempted = 0;
  std::int32_t admitted = 0;         ///< sequences admitted for the first time since the last step,
  std::int32_t admitted_hits = 0;    ///< those of them that found a prefix,
  std::int32_t admitted_tokens = 0;  ///< their prompt tokens, and
  std::int32_t cached_tokens = 0;    ///< how many of these were found and not computed,
  std::int32_t swapped_tokens = 0;   ///< and how many of those came from the swap space
  CacheStatus kv;
  double step_s = 0;                 ///< on the device
  double predicted_s = 0;            ///< of a step with prompts, what the scheduler took it to last; else 0
  std::int32_t encoded = 0;          ///< images and videos encoded since the last step, and
  double encode_s = 0;               ///< from the beginning of each to its end, steps in between included
  std::int32_t encodings_found = 0;  ///< images and videos of which the worker still had what it had made
  std::uint32_t engine = 0;          ///< whose step; the front, which numbers engines, sets it
  metrics::DraftCounts drafts;       ///< of the step
};

/// How a choice of a request ended, as /metrics counts it.
enum class Ending : std::uint8_t { stop, length, tool_calls, timeout, cancelled, error };
inline constexpr std::size_t kEndings = 6;

/// One finished request, from SESSION HOST to METRICS. Times in seconds.
struct RequestStats {
  bool ok = false;
  std::array<std::int32_t, kEndings>
      endings{};            ///< choices by Ending; one that had none yet counts with its request's
  metrics::GapCounts gaps;  ///< between the tokens of each sequence
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_tokens = 0;  ///< of the prompt
  std::int32_t output_tokens = 0;
  std::int32_t max_tokens = 0;
  double queue_s = 0;    ///< arrival → first plan
  double prefill_s = 0;  ///< first plan → first token
  double ttft_s = 0;     ///< arrival → first token
  double decode_s = 0;   ///< first token → last
  double e2e_s = 0;
  bool handed_over = false;  ///< a prefill instance has computed its prompts
  bool given_back = false;   ///< one was to, and has not
};

struct HttpStats {
  std::string path;  ///< http::metrics_label()
  std::int32_t status = 0;
  bool generates = false;  ///< the model generates text on this route
};

/// Connections that were not served, and exceptions, since the last such message.
struct DoorStats {
  std::int32_t turned_away = 0;        ///< beyond a limit; requests that a trusted proxy passed on count too
  std::int32_t failed_handshakes = 0;  ///< ended before their TLS began
  std::int32_t faults = 0;             ///< exceptions in the HTTP threads
};

/// What MEDIA holds now, and what it has counted since the front's start. Bytes are those of --media-memory.
struct MediaStats {
  std::int64_t file_bytes = 0;  ///< of files that are not decoded yet
  std::int64_t file_limit = 0;
  std::int64_t patch_bytes = 0;  ///< of patches; those of the processor cache among them
  std::int64_t patch_limit = 0;
  std::int64_t cached_bytes = 0;  ///< of images and videos that no request uses: the processor cache
  std::int64_t cached_limit = 0;
  std::int64_t cached_entries = 0;
  std::int64_t hits = 0;              ///< items of requests whose patches were in memory or in the making
  std::int64_t misses = 0;            ///< items that had to be decoded
  std::int32_t decodes_running = 0;   ///< images and videos
  std::int32_t decodes_waiting = 0;   ///< that have room in memory and no process yet
  std::int32_t requests_waiting = 0;  ///< for room in memory
  std::int64_t refused = 0;           ///< requests that found none: 429
  friend bool operator==(const MediaStats&, const MediaStats&) = default;
};

struct SchedulerStatus {
  std::int32_t running = 0;
  std::int32_t max_running = 0;
  std::int32_t waiting = 0;
  std::int32_t max_waiting = 0;
  std::int64_t prompt_tokens = 0;  ///< of all sequences admitted since start
  std::int64_t cached_tokens = 0;  ///< of these, found in the prefix cache
};

struct EngineStatus {
  std::string state;                     ///< loading, ready, draining, restarting
  SchedulerStatus scheduler;             ///< of all engines
  std::vector<SchedulerStatus> engines;  ///< of each, by index; empty: of an engine alone
  CacheStatus cache;
  MediaStats media;  ///< without limits: the model does not see, or MEDIA has not answered
  std::int32_t open_requests = 0;
  std::int32_t max_requests = 0;
};

struct Drain {};

/// The time of a drain is over: open requests end with an error that their clients are told.
struct Abandon {};

/// Asks an actor for a ProbeAnswer; from ROOT.
struct Probe {};

struct ProbeAnswer {
  std::int32_t mailbox = 0;  ///< messages that waited behind the Probe when it was answered
};

/// Asks ROOT for an ActorReport of every actor.
struct ProbeAll {};

/// One actor as ROOT sees it.
struct ActorReport {
  std::string name;
  std::int32_t number = 0;     ///< among the actors of this name
  bool answered = false;       ///< its Probe, in time
  std::int32_t restarts = 0;   ///< since the engine's start
  std::int32_t mailbox = 0;    ///< ProbeAnswer::mailbox
  std::int64_t answer_ns = 0;  ///< from the Probe to its answer: what a message waits at this moment
};

struct ActorReports {
  std::vector<ActorReport> actors;  ///< in start order
};

}  // namespace troupe
