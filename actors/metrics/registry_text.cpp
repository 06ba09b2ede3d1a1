// The text of /metrics. Each name here is explained in docs/metrics.md.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/metrics/process_use.h"
#include "actors/metrics/registry.h"

namespace troupe::metrics {
namespace {

std::string label(std::string_view name, std::string_view value) {
  return std::string(name) + "=\"" + escape_label(value) + "\"";
}

template <class Count>
double share(Count part, Count whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string Registry::text() const {
  Exposition out(label("model_name", constants_.model));
  append_requests(out);
  append_latencies(out);
  append_cache(out);
  append_batches(out);
  append_engines(out);
  append_drafts(out);
  append_swap_space(out);
  append_media(out);
  append_http(out);
  append_processes(out);
  return out.take();
}

void Registry::append_requests(Exposition& out) const {
  out.counter("fastdeploy:requests_number_total", "Requests that have ended", static_cast<double>(requests_));
  out.counter("fastdeploy:request_success_total", "Requests finished without an error",
              static_cast<double>(successes_));
  out.gauge("fastdeploy:num_requests_running", "Sequences that hold a slot", last_.running);
  out.gauge("fastdeploy:num_requests_waiting", "Sequences that wait for a slot", last_.waiting);
  out.counter("fastdeploy:prompt_tokens_total", "Prompt tokens run through the model",
              static_cast<double>(prompt_tokens_));
  out.counter("fastdeploy:generation_tokens_total", "Tokens generated",
              static_cast<double>(generated_tokens_));
  out.heading("troupe:finished_choices_total", "Choices of answers that have ended, by how", "counter");
  for (std::size_t i = 0; i < kEndings; ++i) {
    out.sample("troupe:finished_choices_total", label("reason", kEndingNames[i]),
               static_cast<double>(endings_[i]));
  }
  out.counter("troupe:handed_over_requests_total",
              "Requests that have ended whose prompts a prefill instance has computed",
              static_cast<double>(handed_over_));
  out.counter("troupe:given_back_requests_total",
              "Requests that have ended which a prefill instance has refused or failed at",
              static_cast<double>(given_back_));
  out.heading("troupe:rejected_requests_total", "Generation requests that were refused, by why", "counter");
  for (const std::string_view reason : kRejections) {
    const auto found = rejected_.find(std::string(reason));
    out.sample("troupe:rejected_requests_total", label("reason", reason),
               found == rejected_.end() ? 0 : static_cast<double>(found->second));
  }
}

void Registry::append_latencies(Exposition& out) const {
  out.histogram("fastdeploy:time_to_first_token_seconds", "Arrival to first token", ttft_);
  out.histogram("fastdeploy:time_per_output_token_seconds", "Mean gap between a request's tokens", tpot_);
  out.histogram("fastdeploy:e2e_request_latency_seconds", "Arrival to last token", e2e_);
  out.histogram("fastdeploy:request_inference_time_seconds", "First step to last token", inference_);
  out.histogram("fastdeploy:request_queue_time_seconds", "Arrival to first step", queue_);
  out.histogram("fastdeploy:request_prefill_time_seconds", "First step to first token", prefill_);
  out.histogram("fastdeploy:request_decode_time_seconds", "First token to last", decode_);
  out.histogram("troupe:inter_token_latency_seconds",
                "Gaps between the tokens of a sequence, counted when its request ends", gap_);
  out.histogram("fastdeploy:request_prompt_tokens", "Prompt tokens of a request", request_prompt_);
  out.histogram("fastdeploy:request_generation_tokens", "Tokens generated for a request",
                request_generation_);
  out.histogram("fastdeploy:request_params_max_tokens", "max_tokens of a request", request_max_tokens_);
  out.gauge("fastdeploy:first_token_latency", "Arrival to first token of the last request, seconds",
            last_ttft_s_);
  out.gauge("fastdeploy:infer_latency", "Arrival to last token of the last request, seconds", last_e2e_s_);
}

void Registry::append_cache(Exposition& out) const {
  const CacheStatus& kv = last_.kv;
  const double total = kv.total, available = kv.free + kv.cached;
  const double used = total > 0 ? (total - available) / total : 0;
  const double token_rate = share(cached_tokens_, admitted_tokens_);
  out.gauge("fastdeploy:gpu_cache_usage_perc", "Share of KV blocks that sequences hold; 1 is full", used);
  const std::string labels = "model=\"" + escape_label(constants_.model) + "\",block_size=\"" +
                             std::to_string(constants_.block_size) + "\",cache_dtype=\"" +
                             escape_label(constants_.cache_dtype) + "\",gpu_memory_utilization=\"" +
                             std::to_string(constants_.gpu_memory_utilization) + "\",total_block_num=\"" +
                             std::to_string(kv.total) + "\"";
  out.gauge("fastdeploy:cache_config_info", "Cache configuration, as labels", 1, labels);
  out.gauge("fastdeploy:available_gpu_block_num", "KV blocks free or evictable", available);
  out.gauge("fastdeploy:free_gpu_block_num", "KV blocks free", kv.free);
  out.gauge("fastdeploy:max_gpu_block_num", "KV blocks in all", total);
  out.gauge("fastdeploy:max_cpu_block_num", "Blocks of the swap space", kv.swap.total);
  out.gauge("fastdeploy:available_gpu_resource", "Share of KV blocks free or evictable", 1 - used);
  out.gauge("fastdeploy:hit_req_rate", "Share of admitted sequences that found a prefix",
            share(admitted_hits_, admitted_));
  out.gauge("fastdeploy:hit_token_rate", "Share of prompt tokens found in the prefix cache", token_rate);
  out.gauge("fastdeploy:gpu_hit_token_rate", "Share of prompt tokens found in KV memory",
            share(cached_tokens_ - swapped_tokens_, admitted_tokens_));
  out.gauge("fastdeploy:cpu_hit_token_rate", "Share of prompt tokens found in the swap space",
            share(swapped_tokens_, admitted_tokens_));
  out.counter("fastdeploy:prefix_cache_token_num", "Prompt tokens found in the prefix cache",
              static_cast<double>(cached_tokens_));
  out.counter("fastdeploy:prefix_gpu_cache_token_num", "Prompt tokens found in KV memory",
              static_cast<double>(cached_tokens_ - swapped_tokens_));
  out.counter("fastdeploy:prefix_cpu_cache_token_num", "Prompt tokens found in the swap space",
              static_cast<double>(swapped_tokens_));
  out.gauge("troupe:kv_blocks_leased", "KV blocks leased to sequences", kv.leased + kv.moving);
  out.gauge("troupe:kv_blocks_cached", "KV blocks that no sequence holds and a prompt may find", kv.cached);
  out.counter("troupe:prefix_cache_queried_tokens_total", "Prompt tokens of admitted sequences",
              static_cast<double>(admitted_tokens_));
  out.counter("troupe:prefix_cache_evictions_total", "Cached KV blocks given to other contents",
              static_cast<double>(evicted_));
}

void Registry::append_batches(Exposition& out) const {
  out.gauge("fastdeploy:batch_size", "Sequences in the last step", last_.running);
  out.gauge("fastdeploy:max_batch_size", "Sequences a step can hold", constants_.max_num_seqs);
  out.gauge("fastdeploy:available_batch_size", "Slots free", constants_.max_num_seqs - last_.running);
  out.counter("troupe:steps_total", "Steps run", static_cast<double>(steps_));
  out.counter("troupe:preemptions_total", "Sequences put back for lack of KV blocks",
              static_cast<double>(preempted_));
  out.histogram("troupe:step_seconds", "Device time of a step", step_);
  out.histogram("troupe:prefill_step_seconds", "Device time of a step with prompt tokens", prefill_step_);
  out.counter("troupe:prefill_step_predicted_seconds_total", "Device time predicted for those steps",
              predicted_s_);
}

/// Of each engine; what stands elsewhere is of all.
void Registry::append_engines(Exposition& out) const {
  const auto each = [&](const char* name, const char* help, const char* type, auto&& value) {
    out.heading(name, help, type);
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      out.sample(name, label("engine", std::to_string(i)), static_cast<double>(value(engines_[i])));
    }
  };
  each("troupe:engine_requests_running", "Sequences that hold a slot of the engine", "gauge",
       [](const Engine& engine) { return engine.last.running; });
  each("troupe:engine_requests_waiting", "Sequences that wait for a slot of the engine", "gauge",
       [](const Engine& engine) { return engine.last.waiting; });
  each("troupe:engine_prompt_tokens_total", "Prompt tokens that the engine has run through the model",
       "counter", [](const Engine& engine) { return engine.prompt_tokens; });
  each("troupe:engine_generation_tokens_total", "Tokens that the engine has generated", "counter",
       [](const Engine& engine) { return engine.generated_tokens; });
  each("troupe:engine_cached_tokens_total", "Prompt tokens that the engine has found in its prefix cache",
       "counter", [](const Engine& engine) { return engine.cached_tokens; });
  each("troupe:engine_kv_blocks_available", "KV blocks of the engine that are free or evictable", "gauge",
       [](const Engine& engine) { return engine.last.kv.free + engine.last.kv.cached; });
}

void Registry::append_drafts(Exposition& out) const {
  if (constants_.max_drafts == 0) return;
  const DraftCounts& d = drafts_;
  const auto count = [&](const char* name, const char* help, std::int64_t value) {
    out.counter(name, help, static_cast<double>(value));
  };
  // FastDeploy's rate is one of draft tokens with a draft layer, and one of tokens with n-grams.
  const bool of_drafts = constants_.draft_method == config::DraftMethod::mtp;
  out.gauge(
      "fastdeploy:spec_decode_draft_acceptance_rate",
      of_drafts ? "Share of draft tokens that were accepted" : "Share of tokens that were accepted drafts",
      share(d.accepted, of_drafts ? d.drafted : d.emitted));
  count("fastdeploy:spec_decode_num_accepted_tokens_total", "Draft tokens accepted", d.accepted);
  count("fastdeploy:spec_decode_num_emitted_tokens_total", "Tokens of rows that may draft", d.emitted);
  count("fastdeploy:spec_decode_num_draft_tokens_total", "Draft tokens verified", d.drafted);
  out.gauge("fastdeploy:spec_decode_efficiency",
            "Tokens of rows that may draft, as a share of the most possible",
            share(d.emitted, d.rows + d.drafted));
  const auto positions = std::min(static_cast<std::size_t>(constants_.max_drafts), DraftCounts::kPositions);
  for (std::size_t i = 0; i < positions; ++i) {
    out.gauge("fastdeploy:spec_decode_draft_single_head_acceptance_rate_" + std::to_string(i),
              "Share of draft tokens accepted at this position where those before it were",
              share(d.accepted_at[i], d.reached_at[i]));
  }
  count("troupe:draft_rows_total", "Rows that verified a draft token", d.with_drafts);
  const auto each = [&](const char* name, const char* help, const DraftCounts::ByPosition& values) {
    out.heading(name, help, "counter");
    for (std::size_t i = 0; i < positions; ++i) {
      out.sample(name, label("position", std::to_string(i)), static_cast<double>(values[i]));
    }
  };
  each("troupe:draft_tokens_total", "Draft tokens verified, by their position in the row", d.drafted_at);
  each("troupe:accepted_draft_tokens_total", "Draft tokens accepted, likewise", d.accepted_at);
}

void Registry::append_swap_space(Exposition& out) const {
  out.gauge("troupe:swap_blocks_cached", "Blocks of the swap space that a prompt may find",
            last_.kv.swap.cached);
  const auto blocks = [&out](const char* name, const char* help, std::int64_t count) {
    out.counter(name, help, static_cast<double>(count));
  };
  blocks("troupe:swap_out_blocks_total", "KV blocks copied to the swap space", swap_total_.out);
  blocks("troupe:swap_in_blocks_total", "KV blocks copied back", swap_total_.in);
  blocks("troupe:swap_evictions_total", "Blocks of the swap space given to other contents",
         swap_total_.evicted);
  blocks("troupe:swap_failed_blocks_total", "Blocks whose copy failed; they are computed again",
         swap_total_.failed);
  blocks("troupe:swap_declined_blocks_total", "Blocks not copied because computing them again is faster",
         swap_total_.declined);
  blocks("troupe:peer_in_blocks_total", "KV blocks copied from other instances", peers_total_.in);
  blocks("troupe:peer_failed_blocks_total", "Of those not copied whole; their tokens are computed",
         peers_total_.failed);
}

void Registry::append_media(Exposition& out) const {
  const auto number = [](std::int64_t count) { return static_cast<double>(count); };
  out.heading("troupe:media_memory_used_bytes", "Media memory in use, by what for", "gauge");
  out.sample("troupe:media_memory_used_bytes", label("use", "files"), number(media_.file_bytes));
  out.sample("troupe:media_memory_used_bytes", label("use", "patches"), number(media_.patch_bytes));
  out.heading("troupe:media_memory_limit_bytes", "Media memory that there is, by what for", "gauge");
  out.sample("troupe:media_memory_limit_bytes", label("use", "files"), number(media_.file_limit));
  out.sample("troupe:media_memory_limit_bytes", label("use", "patches"), number(media_.patch_limit));
  out.gauge("troupe:processor_cache_entries", "Prepared images and videos that no open request has",
            number(media_.cached_entries));
  out.gauge("troupe:processor_cache_bytes", "Media memory that these take", number(media_.cached_bytes));
  out.gauge("troupe:processor_cache_limit_bytes", "Media memory that these may take",
            number(media_.cached_limit));
  out.counter("troupe:processor_cache_hits_total", "Images and videos of requests that were in memory",
              number(media_.hits));
  out.counter("troupe:processor_cache_misses_total", "Images and videos of requests that had to be decoded",
              number(media_.misses));
  out.gauge("troupe:media_decodes_running", "Images and videos that are being decoded",
            media_.decodes_running);
  out.gauge("troupe:media_decodes_waiting", "Images and videos that wait for a process to decode them",
            media_.decodes_waiting);
  out.gauge("troupe:media_requests_waiting", "Requests that wait for media memory", media_.requests_waiting);
  out.counter("troupe:media_refused_total", "Requests that found no media memory in time: 429",
              number(media_.refused));
  out.counter("troupe:media_encoded_total", "Images and videos encoded", static_cast<double>(encoded_));
  out.counter("troupe:media_encode_seconds_total",
              "Time from the begin of each encoding to its end, steps in between included", encode_s_);
  out.counter("troupe:encoder_cache_hits_total", "Images and videos whose encoder output was still there",
              static_cast<double>(encodings_found_));
}

void Registry::append_http(Exposition& out) const {
  out.heading("troupe:http_answers_total", "HTTP answers by route and status", "counter");
  for (const auto& [key, count] : http_) {
    out.sample("troupe:http_answers_total",
               "path=\"" + escape_label(key.first) + "\",status=\"" + std::to_string(key.second) + "\"",
               static_cast<double>(count));
  }
  out.counter("troupe:connections_turned_away_total",
              "Connections beyond a limit, and requests of a proxy's client beyond it",
              static_cast<double>(turned_away_));
  out.counter("troupe:tls_handshakes_failed_total", "Connections that ended before their TLS began",
              static_cast<double>(failed_handshakes_));
  out.counter("troupe:http_faults_total", "Exceptions in the HTTP threads, each the end of a connection",
              static_cast<double>(faults_));
}

void Registry::append_processes(Exposition& out) const {
  out.heading("troupe:build_info", "The program that answers, as labels", "gauge");
  out.sample("troupe:build_info", label("version", constants_.version), 1);
  out.heading("troupe:process_restarts_total", "How often the process was started again", "counter");
  for (const ProcessReport& process : processes_.processes) {
    out.sample("troupe:process_restarts_total", label("process", process.name), process.restarts);
  }
  std::vector<std::pair<std::string, ProcessUse>> used;
  for (const ProcessReport& process : processes_.processes) {
    if (const auto use = process_use(process.pid)) used.emplace_back(label("process", process.name), *use);
  }
  out.heading("troupe:process_cpu_seconds_total", "CPU time of the process, user and system", "counter");
  for (const auto& [labels, use] : used) out.sample("troupe:process_cpu_seconds_total", labels, use.cpu_s);
  out.heading("troupe:process_resident_memory_bytes", "Memory of the process that is resident", "gauge");
  for (const auto& [labels, use] : used) {
    out.sample("troupe:process_resident_memory_bytes", labels, static_cast<double>(use.resident_bytes));
  }
  out.heading("troupe:process_threads", "Threads of the process", "gauge");
  for (const auto& [labels, use] : used) out.sample("troupe:process_threads", labels, use.threads);
}

}  // namespace troupe::metrics
