#pragma once
// Scheduler and cache manager connected directly; the test makes each plan and answers it by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "actors/cache/cache_manager.h"
#include "actors/scheduler/scheduler.h"
#include "tests/scheduler/simulation.h"

namespace troupe::test {

/// Prompts and answers are looked up and published.
inline constexpr PrefixCaching kCachesAll{true, true, {1, 2}};

/// n ids that rise from `first`, and begin again after 30.
inline std::vector<TokenId> counted(std::int32_t n, TokenId first = 10) {
  std::vector<TokenId> ids;
  for (std::int32_t i = 0; i < n; ++i) ids.push_back(first + i % 30);
  return ids;
}

struct Rig {
  /// Without a prefix cache unless `caching` says otherwise.
  explicit Rig(Setting s = {}, config::SchedulerOptions options = {},
               PrefixCaching caching = {false, false, {}})
      : scheduler(options, caching) {
    wire::Capacity c;
    c.kv_blocks = s.blocks;
    c.block_tokens = s.block_tokens;
    c.max_slots = s.slots;
    c.max_tokens_per_step = s.budget;
    c.max_model_len = s.max_length;
    c.vocab_size = s.vocab;
    c.max_steps_in_flight = s.in_flight;
    c.swap_blocks = s.swap_blocks;
    c.max_logprobs = s.max_logprobs;
    c.media_tokens = s.media_tokens;
    c.max_drafts = s.drafts;
    c.max_proposed = s.proposes ? s.drafts : 0;
    c.max_sampled = s.drafts > 0 ? s.slots + s.drafted_rows : 0;
    capacity = c;
    attach(1);
  }

  void attach(std::uint32_t e) {
    epoch = e;
    done = 0;
    steps.clear();
    commands.clear();
    cache.reset(e, capacity.kv_blocks, capacity.block_tokens, {capacity.swap_blocks, 4096});
    scheduler.attach(e, capacity, out);
  }
  Status submit(std::uint64_t key, std::int32_t prompt, std::int32_t max_output, std::uint64_t parent = 0) {
    Submit request;
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, key};
    if (parent != 0) spec.parent = {1, parent};
    spec.prompt.assign(static_cast<std::size_t>(prompt), 3);
    spec.prompt_tokens = prompt;
    spec.max_output_tokens = max_output;
    spec.stop_ids = {kStop};
    const Status status = scheduler.submit(request);
    exchange();
    return status;
  }
  void add(std::uint64_t key, std::int32_t prompt, std::int32_t max_output) {
    EXPECT_TRUE(submit(key, prompt, max_output).ok());
  }
  void exchange() {
    CacheAsks asks;
    CacheGrants grants;
    while (scheduler.take_asks(asks)) {
      cache.answer(asks, grants);
      for (std::size_t i = 0; i < cache.commands(); ++i) {
        commands.emplace_back(cache.command(i).begin(), cache.command(i).end());
      }
      scheduler.granted(grants);
    }
  }

  /// Ends all cache commands that were made until now. `fetches`: whether copies from the swap space succeed.
  void end_commands(bool fetches = true) {
    for (std::size_t n = commands.size(); n > 0; --n) {
      const std::vector<std::byte> bytes = commands.front();
      commands.pop_front();
      wire::RecordView command;
      ASSERT_TRUE(wire::RecordView::open(bytes, command));
      const auto& header = *command.as<wire::CacheCommand>();
      wire::CacheDone record;
      record.header = {wire::RecordKind::cache_done, sizeof record, epoch, 0};
      record.id = header.id;
      record.failed = fetches || header.op != wire::CacheOp::swap_in ? 0 : 1;
      record.finished_ns = 1000;
      CacheGrants update;
      ASSERT_TRUE(cache.done(record, update));
      scheduler.granted(update);
      exchange();
    }
  }

  /// Makes the next plan; its rows are valid until the next call. False when the scheduler makes none.
  bool plan() {
    const std::span<const std::byte> bytes = scheduler.plan(++now);
    media.clear();
    scheduler.take_media(media);
    exchange();
    if (bytes.empty()) return false;
    record.assign(bytes.begin(), bytes.end());
    EXPECT_TRUE(wire::RecordView::open(record, view));
    steps.push_back({rows().begin(), rows().end()});
    return true;
  }
  const wire::StepPlan& header() const { return *view.as<wire::StepPlan>(); }
  std::span<const wire::PlanRow> rows() const { return view.array(header().rows); }

  /// The result of the oldest plan: `token` for every row that samples.
  std::vector<std::byte> result(TokenId token, wire::RowError error = wire::RowError::none) {
    std::vector<wire::ResultRow> rows;
    std::vector<TokenId> tokens;
    for (const wire::PlanRow& row : steps.front()) {
      if ((row.flags & wire::kSamples) == 0) continue;
      rows.push_back({row.slot, static_cast<std::int32_t>(tokens.size()), 1,
                      rows.empty() ? error : wire::RowError::none, 0});
      tokens.push_back(token);
    }
    wire::RecordWriter<wire::StepResult> writer;
    writer.begin(epoch);
    const auto row_span = writer.array(rows);
    const auto token_span = writer.array(tokens);
    writer.record().step = ++done;
    writer.record().rows = row_span;
    writer.record().tokens = token_span;
    writer.record().started_ns = began_ns;
    writer.record().finished_ns = began_ns + 2'000'000;
    if (step_s)
      writer.record().finished_ns = began_ns + static_cast<std::int64_t>(1e9 * step_s(steps.front()));
    steps.erase(steps.begin());
    const std::span<const std::byte> bytes = writer.finish();
    return {bytes.begin(), bytes.end()};
  }
  void commit(TokenId token, wire::RowError error = wire::RowError::none) {
    ASSERT_EQ(scheduler.commit(result(token, error), out), Committed::applied);
    exchange();
  }
  std::vector<SequenceTokens> events() const {
    std::vector<SequenceTokens> all;
    for (const HostTokens& host : out.hosts)
      all.insert(all.end(), host.step.sequences.begin(), host.step.sequences.end());
    return all;
  }
  /// Why the sequence has failed, by the last result.
  std::string error_of(const RequestKey& key) const {
    for (const HostTokens& host : out.hosts) {
      const auto found = std::ranges::find(host.step.sequences, key, &SequenceTokens::key);
      if (found != host.step.sequences.end()) return host.step.error_of(*found);
    }
    return {};
  }

  static constexpr TokenId kStop = 9;
  std::function<double(std::span<const wire::PlanRow>)> step_s;  ///< seconds that a step takes; unset: 2 ms
  std::int64_t began_ns = 1'000'000;                             ///< when the oldest step began
  Scheduler scheduler;
  CacheManager cache;
  wire::Capacity capacity;
  StepOutput out;
  std::vector<std::byte> record;
  std::vector<std::vector<std::byte>> media;  ///< what the worker was sent before the last plan
  wire::RecordView view;
  std::vector<std::vector<wire::PlanRow>> steps;
  std::deque<std::vector<std::byte>> commands;
  std::uint32_t epoch = 0;
  std::uint64_t done = 0;
  std::int64_t now = 0;
};

}  // namespace troupe::test
