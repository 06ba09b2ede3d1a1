#include "config/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "config/dump.h"
#include "config/parse.h"

namespace troupe::config {
namespace {

SpeculationOptions speculation_of(const std::string& text) {
  const Result<SpeculationOptions> read = parse_speculation(text);
  EXPECT_TRUE(read.ok()) << text << ": " << read.status().message;
  EXPECT_TRUE(check_speculation(text).ok());
  EXPECT_EQ(unavailable_speculation(text), "");
  return read ? *read : SpeculationOptions{};
}

std::string error(const std::string& text) {
  EXPECT_EQ(parse_speculation(text).status().code, Code::invalid_argument) << text;
  return check_speculation(text).message;
}

std::string refusal(const std::string& text) {
  EXPECT_EQ(parse_speculation(text).status().code, Code::unsupported) << text;
  EXPECT_TRUE(check_speculation(text).ok()) << text;
  return unavailable_speculation(text);
}

bool warns(const std::string& text, const std::string& key) {
  const auto lines = speculation_warnings(text);
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return line.starts_with("no effect: key \"" + key + "\""); });
}

TEST(Speculation, NothingIsAskedFor) {
  EXPECT_EQ(speculation_of("").method, DraftMethod::none);
  EXPECT_EQ(speculation_of("").tokens, 0);
  EXPECT_TRUE(speculation_warnings("").empty());
}

TEST(Speculation, Ngram) {
  for (const char* name : {"ngram", "ngram_match"}) {
    const auto given = speculation_of(R"({"method": ")" + std::string(name) + "\"}");
    EXPECT_EQ(given.method, DraftMethod::ngram);
    EXPECT_EQ(given.tokens, 4);
    EXPECT_EQ(given.mtp_steps, 0);
    EXPECT_EQ(given.min_ngram, 2);
    EXPECT_EQ(given.max_ngram, 5);
  }
  const auto given = speculation_of(
      R"({"method": "ngram", "num_speculative_tokens": 8, "min_ngram_size": 1, "max_ngram_size": 3})");
  EXPECT_EQ(given.tokens, 8);
  EXPECT_EQ(given.min_ngram, 1);
  EXPECT_EQ(given.max_ngram, 3);
  EXPECT_EQ(speculation_of(R"({"method": "ngram", "max_ngram_size": 1})").min_ngram, 1)
      << "an unset one gives way";
  EXPECT_EQ(speculation_of(R"({"method": "ngram", "min_ngram_size": 7})").max_ngram, 7);
  EXPECT_EQ(speculation_of(R"({"method": "ngram", "num_speculative_tokens": null})").tokens, 4);
}

TEST(Speculation, Mtp) {
  const auto given =
      speculation_of(R"({"method": "mtp", "num_speculative_tokens": 1, "model": "${path_to_mtp_model}"})");
  EXPECT_EQ(given.method, DraftMethod::mtp);
  EXPECT_EQ(given.tokens, 1);
  EXPECT_EQ(given.mtp_steps, 1);
  EXPECT_FALSE(given.with_ngram);
  EXPECT_EQ(given.draft_model, "${path_to_mtp_model}");
  EXPECT_EQ(speculation_of(R"({"method": "mtp"})").tokens, 1);
  EXPECT_EQ(speculation_of(R"({"method": "mtp"})").draft_model, "");
  EXPECT_EQ(speculation_of(R"({"method": "mtp", "num_speculative_tokens": 3})").mtp_steps, 3);
  EXPECT_EQ(speculation_of(R"({"method": "mtp", "num_model_steps": 2})").tokens, 2);
  EXPECT_EQ(speculation_of(R"({"method": "mtp", "num_speculative_tokens": 5, "num_model_steps": 2})").tokens,
            2);
  EXPECT_TRUE(warns(R"({"method": "mtp", "num_speculative_tokens": 5, "num_model_steps": 2})",
                    "num_speculative_tokens"));
}

TEST(Speculation, NgramsAppendToTheLayersDrafts) {
  const auto given = speculation_of(
      R"({"method":"mtp","num_model_steps":2,"mtp_strategy":"with_ngram","num_speculative_tokens":5,"model":"m"})");
  EXPECT_TRUE(given.with_ngram);
  EXPECT_EQ(given.tokens, 5);
  EXPECT_EQ(given.mtp_steps, 2);
  EXPECT_EQ(
      speculation_of(R"({"method":"mtp","mtp_strategy":"with_ngram","num_speculative_tokens":5})").mtp_steps,
      1);
}

TEST(Speculation, QuantisationOfTheLayer) {
  EXPECT_EQ(speculation_of(R"({"method": "mtp", "quantization": "wint4"})").quantization, "wint4");
  const std::string mixed = R"({"dense_quant_type":"wint8","quantization":"mix_quant"})";
  EXPECT_EQ(speculation_of(R"({"method": "mtp", "quantization": )" + mixed + "}").quantization, mixed);
  EXPECT_EQ(error(R"({"method": "mtp", "quantization": "wint5"})").find("key \"quantization\": "), 0u);
  EXPECT_EQ(refusal(R"({"method": "mtp", "quantization": "w4afp8"})").find("key \"quantization\": "), 0u);
}

TEST(Speculation, Naive) {
  const auto given = speculation_of(R"({"method": "naive", "num_speculative_tokens": 3})");
  EXPECT_EQ(given.method, DraftMethod::none);
  EXPECT_EQ(given.tokens, 0);
  EXPECT_TRUE(warns(R"({"method": "naive", "num_speculative_tokens": 3})", "num_speculative_tokens"));
}

TEST(Speculation, NumbersOutOfRange) {
  EXPECT_EQ(error(R"({"method": "mtp", "num_speculative_tokens": 6})"),
            "key \"num_speculative_tokens\": got 6, expected a whole number from 1 to 5 with method mtp");
  EXPECT_EQ(error(R"({"method": "ngram", "num_speculative_tokens": 9})"),
            "key \"num_speculative_tokens\": got 9, expected a whole number from 1 to 8 with method ngram");
  EXPECT_EQ(
      error(R"({"method": "ngram", "num_speculative_tokens": 18446744073709551615})"),
      "key \"num_speculative_tokens\": got 18446744073709551615, expected a whole number from 1 to 8 with "
      "method ngram");
  EXPECT_NE(error(R"({"method": "ngram", "num_speculative_tokens": 0})").find("got 0"), std::string::npos);
  EXPECT_NE(error(R"({"method": "ngram", "num_speculative_tokens": -1})").find("got -1"), std::string::npos);
  EXPECT_NE(error(R"({"method": "ngram", "num_speculative_tokens": 1.5})").find("got 1.5"),
            std::string::npos);
  EXPECT_EQ(error(R"({"method": "mtp", "num_model_steps": 6})"),
            "key \"num_model_steps\": got 6, expected a whole number of at least 1 and at most 5");
  EXPECT_EQ(error(R"({"method": "mtp", "num_model_steps": 3, "num_speculative_tokens": 2})"),
            "key \"num_model_steps\": got 3, expected at most num_speculative_tokens, 2");
  EXPECT_EQ(error(R"({"method": "ngram", "min_ngram_size": 4, "max_ngram_size": 3})"),
            "key \"min_ngram_size\": got 4, expected at most max_ngram_size, 3");
  EXPECT_NE(error(R"({"method": "ngram", "max_ngram_size": 0})").find("got 0"), std::string::npos);
}

TEST(Speculation, UnknownMethodsAndKeys) {
  EXPECT_EQ(error(R"({"method": "guess"})").find("key \"method\": got \"guess\"; offered are ngram and mtp"),
            0u);
  EXPECT_EQ(error(R"({"num_speculative_tokens": 2})").find("the key \"method\" is missing"), 0u);
  EXPECT_NE(error(R"({"methd": "mtp"})").find("did you mean method?"), std::string::npos);
  EXPECT_NE(error(R"({"method": 1})").find("key \"method\": got 1"), std::string::npos);
  EXPECT_NE(error(R"({"method": "ngram", "benchmark_mode": 1})").find("true or false"), std::string::npos);
  EXPECT_NE(error(R"({"method": "ngram", "method": "mtp"})").find("given twice"), std::string::npos);
  EXPECT_NE(error("[]").find("expected a JSON object"), std::string::npos);
}

TEST(Speculation, MethodsOfOthersAreRefusedByName) {
  for (const char* name : {"suffix", "eagle", "eagle3", "medusa", "draft_model"}) {
    const std::string why =
        refusal(R"({"method": ")" + std::string(name) + R"(", "num_speculative_tokens": 16})");
    EXPECT_EQ(why.find("method \"" + std::string(name) + "\" is not offered; offered are ngram and mtp"), 0u);
  }
}

TEST(Speculation, WhatWouldChangeAnswersIsRefused) {
  for (const char* policy : {"accept_all", "reject_all"}) {
    EXPECT_EQ(
        refusal(R"({"method": "ngram", "accept_policy": ")" + std::string(policy) + "\"}"),
        "key \"accept_policy\": \"" + std::string(policy) + "\" would change answers; normal is offered");
  }
  EXPECT_TRUE(speculation_warnings(R"({"method": "ngram", "accept_policy": "normal"})").empty());
}

TEST(Speculation, KeysWithoutEffectAreReported) {
  for (const char* member :
       {R"("max_candidate_len": 5)", R"("verify_window": 2)", R"("suffix_decoding_max_tree_depth": 64)",
        R"("suffix_decoding_max_cached_requests": -1)", R"("suffix_decoding_max_spec_factor": 1.0)",
        R"("suffix_decoding_min_token_prob": 0.1)", R"("num_gpu_block_expand_ratio": 1)",
        R"("benchmark_mode": true)", R"("enf_gen_phase_tag": true)", R"("enable_draft_logprob": true)",
        R"("verify_strategy": "topp")", R"("verify_strategy": "greedy")", R"("model": "m")",
        R"("quantization": "wint4")", R"("num_model_steps": 1)"}) {
    const std::string text = R"({"method": "ngram", )" + std::string(member) + "}";
    speculation_of(text);
    const std::string key(member + 1, std::find(member + 1, member + 40, '"'));
    EXPECT_TRUE(warns(text, key)) << text;
    EXPECT_EQ(speculation_warnings(text).size(), 1u) << text;
  }
  EXPECT_TRUE(speculation_warnings(R"({"method": "ngram", "verify_strategy": "target_match"})").empty());
  EXPECT_TRUE(speculation_warnings(R"({"method": "ngram", "benchmark_mode": false})").empty());
  EXPECT_TRUE(warns(R"({"method": "mtp", "max_ngram_size": 4})", "max_ngram_size"));
  EXPECT_TRUE(speculation_warnings(R"({"method": "mtp", "mtp_strategy": "with_ngram", "max_ngram_size": 4})")
                  .empty());
}

TEST(Speculation, TheFlagFillsTheOptionsOfChildrenToo) {
  const std::string text = R"({"method": "ngram", "num_speculative_tokens": 6, "verify_window": 2})";
  const auto parsed = parse({"--speculative-config", text}, {});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message;
  EXPECT_EQ(parsed->options.speculation.method, DraftMethod::ngram);
  EXPECT_EQ(parsed->options.speculation.tokens, 6);
  EXPECT_TRUE(std::ranges::any_of(parsed->warnings, [](const std::string& line) {
    return line.find("\"verify_window\"") != std::string::npos;
  }));
  const auto child = from_json(to_json(parsed->options));
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->speculation.tokens, 6);
  EXPECT_EQ(child->speculation.json, text);
}

TEST(Speculation, WorksWithForms) {
  EXPECT_TRUE(parse({"--speculative-config", R"({"method": "ngram"})", "--guided-decoding-backend",
                     "xgrammar", "--max-logprobs", "-1"},
                    {})
                  .ok());
}

TEST(Speculation, TheFlagsErrorsNameIt) {
  const auto bad = parse({"--speculative-config", R"({"method": "ngram", "num_speculative_tokens": 9})"}, {});
  EXPECT_EQ(exit_code(bad.status()), 2);
  EXPECT_EQ(bad.status().message.find("--speculative-config: key \"num_speculative_tokens\": got 9"), 0u)
      << bad.status().message;
  const auto elsewhere = parse({"--speculative-config", R"({"method": "eagle"})"}, {});
  EXPECT_EQ(exit_code(elsewhere.status()), 3);
  EXPECT_NE(elsewhere.status().message.find("method \"eagle\" is not offered"), std::string::npos);
}

}  // namespace
}  // namespace troupe::config
