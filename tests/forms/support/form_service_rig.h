#pragma once
// A FormService over fake_form_child.cpp, and its outcomes by ticket.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/grammar/form_service.h"
#include "base/json.h"
#include "forms/support/form_gate.h"
#include "support/byte_tokenizer.h"

namespace troupe::testing {

class FormServiceRig : public ::testing::Test {
 protected:
  static std::shared_ptr<const FormVocabulary> vocabulary(int size = 258) {
    return std::make_shared<const FormVocabulary>(VocabularyImage::copy_of(ByteTokenizer()), size,
                                                  std::vector<TokenId>{ByteTokenizer::kEos});
  }

  static FormServiceSetup setup() {
    FormServiceSetup out;
    out.process.vocabulary = vocabulary();
    out.process.executable = TROUPE_FAKE_FORM_CHILD;
    out.process.times = {std::chrono::milliseconds(1500), 1};
    return out;
  }

  /// With processes that may stand still for as long as a test takes.
  static FormServiceSetup patient_setup() {
    FormServiceSetup out = setup();
    out.process.times = {std::chrono::minutes(5), 1};
    out.process.times.standstill = std::chrono::minutes(5);
    return out;
  }

  std::unique_ptr<FormService> serve(FormServiceSetup setup) {
    return std::make_unique<FormService>(std::move(setup), [this](std::uint64_t ticket) {
      const std::lock_guard lock(mutex_);
      ready_.push_back(ticket);
      changed_.notify_all();
    });
  }

  /// The outcome of a ticket; fails the test when it does not come.
  CompileOutcome wait(FormService& service, std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return std::find(ready_.begin(), ready_.end(), ticket) != ready_.end();
    });
    EXPECT_TRUE(came) << ticket;
    return came ? service.take(ticket) : CompileOutcome{};
  }

  bool has_come(std::uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    return std::find(ready_.begin(), ready_.end(), ticket) != ready_.end();
  }

  /// All tickets that have come, once they are `count` or more; fails the test when they do not come.
  std::vector<std::uint64_t> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return ready_.size() >= count; }));
    return ready_;
  }

  static grammar::Form regex(const std::string& text) {
    return {grammar::Form::Kind::regex, json::to_text(text), "guided_regex"};
  }
  static grammar::Form schema(const std::string& text, const std::string& param = "guided_json") {
    return {grammar::Form::Kind::json_schema, text, param};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> ready_;
};

}  // namespace troupe::testing
