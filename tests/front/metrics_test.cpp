#include "actors/metrics/registry.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <sstream>

#include "actors/metrics/draft_alarm.h"

namespace troupe::metrics {
namespace {

/// The value of the sample whose name and labels, behind that of the model, are exactly `series`, or -1.
double value(std::string text, const std::string& series) {
  const std::string both = "model_name=\"m\",", alone = "{model_name=\"m\"}";
  for (std::size_t at; (at = text.find(alone)) != std::string::npos;) text.erase(at, alone.size());
  for (std::size_t at; (at = text.find(both)) != std::string::npos;) text.erase(at, both.size());
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series + " ")) return std::stod(line.substr(series.size() + 1));
  }
  return -1;
}

TEST(Registry, AddsStepsAndRequests) {
  Registry registry(Constants{"1.2.3", "m", 32, 64, "bfloat16", 0.9});
  registry.add(
      StepStats{2, 1, 5, 2, 1, 2, 1, 40, 30, 10, {10, 4, 1, 5, 0, 3, {20, 15, 5, 0, 6, 3, 1, 0, 2}}, 0.004});
  registry.add(
      StepStats{3, 0, 0, 3, 0, 1, 0, 20, 0, 0, {10, 5, 0, 5, 0, 4, {20, 15, 5, 0, 7, 4, 1, 0, 2}}, 0.002});
  RequestStats request;
  request.ok = true;
  request.prompt_tokens = 5;
  request.output_tokens = 3;
  request.ttft_s = 0.03;
  request.decode_s = 0.2;
  registry.add(request);
  registry.add(RequestStats{});
  const std::string text = registry.text();
  EXPECT_EQ(value(text, "fastdeploy:prompt_tokens_total"), 5);
  EXPECT_EQ(value(text, "fastdeploy:generation_tokens_total"), 5);
  EXPECT_EQ(value(text, "fastdeploy:num_requests_running"), 3);
  EXPECT_EQ(value(text, "fastdeploy:gpu_cache_usage_perc"), 0.5);
  EXPECT_EQ(value(text, "fastdeploy:requests_number_total"), 2);
  EXPECT_EQ(value(text, "fastdeploy:request_success_total"), 1);
  EXPECT_EQ(value(text, "fastdeploy:time_to_first_token_seconds_bucket{le=\"0.02\"}"), 0);
  EXPECT_EQ(value(text, "fastdeploy:time_to_first_token_seconds_bucket{le=\"0.04\"}"), 1);
  EXPECT_EQ(value(text, "fastdeploy:time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(value(text, "fastdeploy:time_per_output_token_seconds_bucket{le=\"0.1\"}"), 1);
  EXPECT_EQ(value(text, "troupe:steps_total"), 2);
  EXPECT_EQ(value(text, "troupe:preemptions_total"), 1);
  EXPECT_EQ(value(text, "fastdeploy:hit_token_rate"), 0.5);
  EXPECT_NEAR(value(text, "fastdeploy:hit_req_rate"), 1.0 / 3, 1e-9);
  EXPECT_EQ(value(text, "fastdeploy:prefix_cache_token_num"), 30);
  EXPECT_EQ(value(text, "troupe:prefix_cache_queried_tokens_total"), 60);
  EXPECT_EQ(value(text, "troupe:prefix_cache_evictions_total"), 4);
  EXPECT_EQ(value(text, "fastdeploy:available_gpu_block_num"), 5);
  EXPECT_EQ(value(text, "fastdeploy:max_cpu_block_num"), 20);
  EXPECT_NEAR(value(text, "fastdeploy:cpu_hit_token_rate"), 10.0 / 60, 1e-9);
  EXPECT_NEAR(value(text, "fastdeploy:gpu_hit_token_rate"), 20.0 / 60, 1e-9);
  EXPECT_EQ(value(text, "fastdeploy:prefix_cpu_cache_token_num"), 10);
  EXPECT_EQ(value(text, "fastdeploy:prefix_gpu_cache_token_num"), 20);
  EXPECT_EQ(value(text, "troupe:swap_blocks_cached"), 5);
  EXPECT_EQ(value(text, "troupe:swap_out_blocks_total"), 7);
  EXPECT_EQ(value(text, "troupe:swap_in_blocks_total"), 4);
  EXPECT_EQ(value(text, "troupe:swap_evictions_total"), 1);
  EXPECT_EQ(value(text, "troupe:swap_declined_blocks_total"), 2);
}

TEST(Registry, CountsGoOnWhenANewWorkerStartsThemAgain) {
  Registry registry(Constants{"v", "m", 1, 64, "x", 1});
  StepStats step;
  for (const std::int64_t out : {5, 8, 2, 3}) {
    step.kv.swap.out = out;
    registry.add(step);
  }
  EXPECT_EQ(value(registry.text(), "troupe:swap_out_blocks_total"), 11);
}

TEST(Registry, WhatProducedNoTokenHasNoLatencies) {
  Registry registry(Constants{"v", "m", 1, 64, "x", 1});
  RequestStats tokenised;
  tokenised.ok = true;
  tokenised.e2e_s = 0.001;
  registry.add(tokenised);
  const std::string text = registry.text();
  EXPECT_EQ(value(text, "fastdeploy:request_success_total"), 1);
  for (const char* name :
       {"time_to_first_token_seconds", "e2e_request_latency_seconds", "request_prompt_tokens"}) {
    EXPECT_EQ(value(text, std::string("fastdeploy:") + name + "_count"), 0) << name;
  }
  EXPECT_EQ(value(text, "fastdeploy:infer_latency"), 0);
}

TEST(Registry, ShowsWhatMediaHolds) {
  Registry registry(Constants{"v", "m", 1, 64, "x", 1});
  MediaStats media;
  media.file_bytes = 1;
  media.file_limit = 2;
  media.patch_bytes = 3;
  media.patch_limit = 4;
  media.cached_bytes = 5;
  media.cached_limit = 6;
  media.cached_entries = 7;
  media.hits = 8;
  media.misses = 9;
  media.decodes_running = 10;
  media.decodes_waiting = 11;
  media.requests_waiting = 12;
  media.refused = 13;
  registry.set(media);
  const std::string text = registry.text();
  EXPECT_EQ(value(text, "troupe:media_memory_used_bytes{use=\"files\"}"), 1);
  EXPECT_EQ(value(text, "troupe:media_memory_limit_bytes{use=\"files\"}"), 2);
  EXPECT_EQ(value(text, "troupe:media_memory_used_bytes{use=\"patches\"}"), 3);
  EXPECT_EQ(value(text, "troupe:media_memory_limit_bytes{use=\"patches\"}"), 4);
  EXPECT_EQ(value(text, "troupe:processor_cache_bytes"), 5);
  EXPECT_EQ(value(text, "troupe:processor_cache_limit_bytes"), 6);
  EXPECT_EQ(value(text, "troupe:processor_cache_entries"), 7);
  EXPECT_EQ(value(text, "troupe:processor_cache_hits_total"), 8);
  EXPECT_EQ(value(text, "troupe:processor_cache_misses_total"), 9);
  EXPECT_EQ(value(text, "troupe:media_decodes_running"), 10);
  EXPECT_EQ(value(text, "troupe:media_decodes_waiting"), 11);
  EXPECT_EQ(value(text, "troupe:media_requests_waiting"), 12);
  EXPECT_EQ(value(text, "troupe:media_refused_total"), 13);
}

TEST(Registry, CountsHowChoicesEndedAndGapsOfTheirTokens) {
  Registry registry(Constants{"v", "m", 1, 64, "x", 1});
  RequestStats request;
  request.ok = true;
  request.ttft_s = .00015;
  request.endings = {1, 2, 0, 0, 0, 0};
  request.gaps.add(.0008, 2);
  request.gaps.add(99, 1);
  registry.add(request);
  const std::string text = registry.text();
  EXPECT_EQ(value(text, "troupe:finished_choices_total{reason=\"stop\"}"), 1);
  EXPECT_EQ(value(text, "troupe:finished_choices_total{reason=\"length\"}"), 2);
  EXPECT_EQ(value(text, "troupe:finished_choices_total{reason=\"cancelled\"}"), 0);
  EXPECT_EQ(value(text, "troupe:inter_token_latency_seconds_bucket{le=\"0.00025\"}"), 0);
  EXPECT_EQ(value(text, "troupe:inter_token_latency_seconds_bucket{le=\"0.0005\"}"), 2);
  EXPECT_EQ(value(text, "troupe:inter_token_latency_seconds_bucket{le=\"10\"}"), 2);
  EXPECT_EQ(value(text, "troupe:inter_token_latency_seconds_count"), 3);
  EXPECT_DOUBLE_EQ(value(text, "troupe:inter_token_latency_seconds_sum"), 99.0008);
  EXPECT_EQ(value(text, "fastdeploy:time_to_first_token_seconds_bucket{le=\"0.0001\"}"), 0);
  EXPECT_EQ(value(text, "fastdeploy:time_to_first_token_seconds_bucket{le=\"0.00025\"}"), 1);
}

TEST(Registry, RefusedGenerationRequestsCountByWhy) {
  Registry registry(Constants{"v", "m", 1, 64, "x", 1});
  for (const int status : {200, 400, 404, 401, 413, 429, 499, 500, 503}) {
    registry.add(HttpStats{"/v1/chat/completions", status, true});
    registry.add(HttpStats{"/tokenize", status, false});
  }
  const std::string text = registry.text();
  EXPECT_EQ(value(text, "troupe:rejected_requests_total{reason=\"invalid\"}"), 2);
  for (const char* reason : {"unauthorized", "too_large", "overloaded", "unavailable"}) {
    EXPECT_EQ(value(text, "troupe:rejected_requests_total{reason=\"" + std::string(reason) + "\"}"), 1)
        << reason;
  }
}

TEST(Registry, ShowsWhatLivingProcessesUse) {
  Registry registry(Constants{"1.2.3", "m", 1, 64, "x", 1});
  registry.set({{{"engine", getpid(), 2}, {"worker-0", 0, 1}}});
  const std::string text = registry.text();
  EXPECT_EQ(value(text, "troupe:build_info{version=\"1.2.3\"}"), 1);
  EXPECT_EQ(value(text, "troupe:process_restarts_total{process=\"engine\"}"), 2);
  EXPECT_EQ(value(text, "troupe:process_restarts_total{process=\"worker-0\"}"), 1);
  EXPECT_GT(value(text, "troupe:process_resident_memory_bytes{process=\"engine\"}"), 1e6);
  EXPECT_GE(value(text, "troupe:process_threads{process=\"engine\"}"), 1);
  EXPECT_GE(value(text, "troupe:process_cpu_seconds_total{process=\"engine\"}"), 0);
  EXPECT_EQ(value(text, "troupe:process_threads{process=\"worker-0\"}"), -1);
}

TEST(Registry, EverySeriesHasHelpAndTypeOnce) {
  const std::string text = Registry(Constants{}).text();
  std::istringstream lines(text);
  std::set<std::string> types;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    const std::string name = line.substr(7, line.rfind(' ') - 7);
    EXPECT_TRUE(types.insert(name).second) << name;
    EXPECT_NE(text.find("# HELP " + name + " "), std::string::npos) << name;
  }
  EXPECT_GE(types.size(), 30u);
}

TEST(DraftCounts, ARowCountsEachOfItsDrafts) {
  DraftCounts counts;
  counts.add_row(4, 2, 3);
  counts.add_row(1, 1, 2);
  counts.add_row(0, 0, 1);
  counts.add_row(8, 8, 2);  // its sequence ended at the second
  EXPECT_EQ(counts.rows, 4);
  EXPECT_EQ(counts.with_drafts, 3);
  EXPECT_EQ(counts.drafted, 13);
  EXPECT_EQ(counts.accepted, 11);
  EXPECT_EQ(counts.emitted, 8);
  EXPECT_EQ(counts.drafted_at, (DraftCounts::ByPosition{3, 2, 2, 2, 1, 1, 1, 1}));
  EXPECT_EQ(counts.accepted_at, (DraftCounts::ByPosition{3, 2, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(counts.reached_at, (DraftCounts::ByPosition{3, 2, 2, 1, 1, 1, 1, 1}));
  DraftCounts twice = counts;
  twice += counts;
  EXPECT_EQ(twice.emitted, 16);
  EXPECT_EQ(twice.rows, 8);
  EXPECT_EQ(twice.with_drafts, 6);
  EXPECT_EQ(twice.reached_at[2], 4);
  EXPECT_NE(twice, counts);
}

/// Steps of ten rows with a draft token each, of which the first `accepted` are accepted.
std::size_t alarms(DraftAlarm& alarm, int steps, int accepted) {
  std::size_t count = 0;
  for (int i = 0; i < steps; ++i) {
    DraftCounts counts;
    for (int row = 0; row < 10; ++row) counts.add_row(1, row < accepted ? 1 : 0, 1);
    if (const auto share = alarm.observe(counts)) {
      EXPECT_LT(*share, DraftAlarm::kLeastAccepted);
      ++count;
    }
  }
  return count;
}

TEST(DraftAlarm, SpeaksOnceWhileNearlyAllDraftsAreWrong) {
  DraftAlarm alarm;
  EXPECT_EQ(alarms(alarm, 99, 0), 0u) << "too few drafts to judge";
  EXPECT_EQ(alarms(alarm, 1, 0), 1u);
  EXPECT_EQ(alarms(alarm, 1000, 0), 0u) << "it was said";
  EXPECT_EQ(alarms(alarm, 100, 1), 0u) << "one in ten is enough";
  EXPECT_EQ(alarms(alarm, 100, 0), 1u) << "once more";
  EXPECT_EQ(alarms(alarm, 1000, 5), 0u);
  DraftAlarm exact;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(alarms(exact, 1, i % 2), 0u) << "5 % is enough";
  DraftAlarm idle;
  EXPECT_FALSE(idle.observe({}).has_value());
}

TEST(Registry, DraftsByPosition) {
  Constants constants{"v", "m", 1, 64, "x", 1};
  constants.draft_method = config::DraftMethod::mtp;
  constants.max_drafts = 2;
  Registry registry(constants);
  StepStats step;
  step.drafts.add_row(2, 1, 2);
  step.drafts.add_row(2, 0, 1);
  registry.add(step);
  registry.add(step);
  step.drafts = {};
  step.drafts.add_row(0, 0, 1);
  registry.add(step);
  const std::string text = registry.text();
  EXPECT_EQ(value(text, "fastdeploy:spec_decode_draft_acceptance_rate"), 0.25);
  EXPECT_EQ(value(text, "fastdeploy:spec_decode_num_accepted_tokens_total"), 2);
  EXPECT_EQ(value(text, "fastdeploy:spec_decode_num_emitted_tokens_total"), 7);
  EXPECT_EQ(value(text, "fastdeploy:spec_decode_num_draft_tokens_total"), 8);
  EXPECT_NEAR(value(text, "fastdeploy:spec_decode_efficiency"), 7.0 / 13, 1e-9);
  EXPECT_EQ(value(text, "fastdeploy:spec_decode_draft_single_head_acceptance_rate_0"), 0.5);
  EXPECT_EQ(value(text, "fastdeploy:spec_decode_draft_single_head_acceptance_rate_1"), 0);
  EXPECT_EQ(value(text, "fastdeploy:spec_decode_draft_single_head_acceptance_rate_2"), -1);
  EXPECT_EQ(value(text, "troupe:draft_rows_total"), 4);
  EXPECT_EQ(value(text, "troupe:draft_tokens_total{position=\"1\"}"), 4);
  EXPECT_EQ(value(text, "troupe:accepted_draft_tokens_total{position=\"0\"}"), 2);
  EXPECT_EQ(value(text, "troupe:accepted_draft_tokens_total{position=\"2\"}"), -1);
  constants.draft_method = config::DraftMethod::ngram;
  Registry with_ngram(constants);
  with_ngram.add(
      StepStats{.drafts = {.rows = 4, .with_drafts = 2, .drafted = 4, .accepted = 2, .emitted = 8}});
  EXPECT_EQ(value(with_ngram.text(), "fastdeploy:spec_decode_draft_acceptance_rate"), 0.25);
}

TEST(Registry, NoSeriesOfDraftsWithoutSpeculation) {
  const std::string text = Registry(Constants{}).text();
  EXPECT_EQ(text.find("spec_decode"), std::string::npos);
  EXPECT_EQ(text.find("draft"), std::string::npos);
}

TEST(Registry, LabelsAreEscaped) {
  const std::string text = Registry(Constants{"v", "a\"b\\c\n", 1, 64, "x", 1}).text();
  EXPECT_NE(text.find("model=\"a\\\"b\\\\c\\n\""), std::string::npos);
}

TEST(Histogram, BoundsAreInclusive) {
  const double bounds[] = {1, 2};
  Histogram histogram(bounds);
  for (const double v : {0.5, 1.0, 1.5, 2.0, 9.0}) histogram.observe(v);
  EXPECT_EQ(histogram.bucket(0), 2u);
  EXPECT_EQ(histogram.bucket(1), 2u);
  EXPECT_EQ(histogram.bucket(2), 1u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 14.0);
}

}  // namespace
}  // namespace troupe::metrics
