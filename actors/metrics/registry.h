#pragma once
// Everything that /metrics shows. The fastdeploy:* names, types and buckets are those of FastDeploy's
// metrics page, so that existing dashboards work (histograms have more buckets below and above); troupe:* are
// our own. docs/metrics.md explains each.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/metrics/exposition.h"
#include "actors/observation_messages.h"
#include "config/options.h"

namespace troupe::metrics {

/// What never changes after start.
struct Constants {
  std::string version;
  std::string model;  ///< as clients call it: the label model_name of every series
  std::int32_t max_num_seqs = 0;
  std::int32_t block_size = 64;
  std::string cache_dtype;
  double gpu_memory_utilization = 0;
  std::size_t engines = 1;
  config::DraftMethod draft_method = config::DraftMethod::none;
  std::int32_t max_drafts = 0;  ///< draft tokens of a row, at most; 0: no speculation, and no series of it
};

inline constexpr std::array<std::string_view, kEndings> kEndingNames = {"stop",    "length",    "tool_calls",
                                                                        "timeout", "cancelled", "error"};
inline constexpr std::array<std::string_view, 5> kRejections = {"invalid", "unauthorized", "too_large",
                                                                "overloaded", "unavailable"};

class Registry {
 public:
  explicit Registry(Constants constants);

  void add(const StepStats& step);
  void add(const RequestStats& request);
  void add(const HttpStats& answer);
  void add(const DoorStats& door);
  void set(ProcessReports reports) { processes_ = std::move(reports); }
  void set(const MediaStats& media) { media_ = media; }

  /// Reads /proc for what the processes use now.
  std::string text() const;

 private:
  void append_requests(Exposition& out) const;
  void append_latencies(Exposition& out) const;
  void append_cache(Exposition& out) const;
  void append_batches(Exposition& out) const;
  void append_swap_space(Exposition& out) const;
  void append_media(Exposition& out) const;
  void append_http(Exposition& out) const;
  void append_processes(Exposition& out) const;

  /// What engines reported last.
  struct Engine {
    StepStats last;
    std::uint64_t prompt_tokens = 0;  ///< since the start, as the next
    std::uint64_t generated_tokens = 0;
    std::uint64_t cached_tokens = 0;
  };
  void append_engines(Exposition& out) const;
  void append_drafts(Exposition& out) const;

  Constants constants_;
  std::vector<Engine> engines_;  ///< by index
  StepStats last_;               ///< of all engines as one: what runs and waits, and the KV blocks
  DraftCounts drafts_;
  std::uint64_t steps_ = 0;
  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t generated_tokens_ = 0;
  std::uint64_t preempted_ = 0;
  std::uint64_t admitted_ = 0;
  std::uint64_t admitted_hits_ = 0;
  std::uint64_t admitted_tokens_ = 0;
  std::uint64_t cached_tokens_ = 0;
  std::uint64_t encoded_ = 0;
  double encode_s_ = 0;
  std::uint64_t encodings_found_ = 0;
  std::uint64_t evicted_ = 0;
  std::uint64_t swapped_tokens_ = 0;
  SwapStatus swap_total_;  ///< its counts since the start
  PeerStatus peers_total_;
  std::uint64_t requests_ = 0;
  std::uint64_t successes_ = 0;
  std::uint64_t handed_over_ = 0;
  std::uint64_t given_back_ = 0;
  double last_ttft_s_ = 0;
  double last_e2e_s_ = 0;
  std::map<std::pair<std::string, std::int32_t>, std::uint64_t> http_;
  std::array<std::uint64_t, kEndings> endings_{};
  std::map<std::string, std::uint64_t> rejected_;  ///< by reason
  ProcessReports processes_;
  MediaStats media_;
  std::uint64_t turned_away_ = 0;
  std::uint64_t failed_handshakes_ = 0;
  std::uint64_t faults_ = 0;
  Histogram ttft_, tpot_, gap_, e2e_, inference_, queue_, prefill_, decode_;
  Histogram request_prompt_, request_generation_, request_max_tokens_;
  Histogram step_, prefill_step_;
  double predicted_s_ = 0;  ///< of the steps that prefill_step_ counts, as they were predicted
};

}  // namespace troupe::metrics
