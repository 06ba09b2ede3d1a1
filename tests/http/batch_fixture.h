#pragma once
// The thread of batches over a directory of its own, before a Backend that the test answers for.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/json.h"
#include "http/batch/batch_service.h"
#include "http/batch/upload.h"
#include "support/patience.h"

namespace troupe::http::test {

using Resource = StoreRequest::Resource;
using Verb = StoreRequest::Verb;
using troupe::test::kPatience;

constexpr std::uint32_t kIo = 7;

/// Keeps the requests that it is asked for.
class BatchEngine final : public Backend {
 public:
  void submit(Call&& call) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_all();
  }
  void cancel(Exchange exchange) override {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(exchange.id);
    changed_.notify_all();
  }
  Health health() const override { return {.live = true, .state = Health::State::ready}; }

  /// The next request; fails the test when none comes.
  Call next() {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, kPatience, [&] { return !calls_.empty(); });
    EXPECT_TRUE(came);
    if (!came) return {};
    Call call = std::move(calls_.front());
    calls_.pop_front();
    return call;
  }
  std::size_t waiting() {
    const std::lock_guard lock(mutex_);
    return calls_.size();
  }
  bool was_cancelled(std::uint64_t exchange) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return cancelled_.contains(exchange); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;
  std::set<std::uint64_t> cancelled_;
};

class BatchServiceTest : public testing::Test {
 protected:
  BatchServiceTest() {
    char pattern[] = "/tmp/troupe-batch-test-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    open();
  }
  ~BatchServiceTest() override {
    service_.reset();
    std::filesystem::remove_all(folder_);
  }

  /// A server over the directory: the first, or one after a death.
  void open() {
    service_.reset();
    auto store = BatchStore::open(folder_ + "/batches", 1 << 20);
    ASSERT_TRUE(store.ok()) << store.status().message;
    BatchService::Setup setup;
    setup.options.file_bytes = 100'000;
    setup.limits.max_body_bytes = 10'000;
    setup.io = kIo;
    setup.concurrency = 3;
    setup.deliver = [this](std::uint32_t, std::vector<Output>&& outputs) {
      const std::lock_guard lock(mutex_);
      for (Output& output : outputs) waiting_.at(output.exchange_id).set_value(std::move(output));
    };
    setup.unix_seconds = [this] { return now_s_.load(); };
    service_ = std::make_unique<BatchService>(*std::move(store), std::move(setup));
    service_->start(engine_);
  }

  /// Ends the server, and changes what it has kept of a batch: open() begins with that.
  void edit_record(const std::string& id, const std::function<void(Json& record)>& change) {
    service_.reset();
    Json record = json::parse(read(record_path(id))).value_or(Json());
    change(record);
    std::ofstream(record_path(id), std::ios::binary | std::ios::trunc) << json::to_text(record);
  }
  std::string record_path(const std::string& id) const {
    return folder_ + "/batches/batches/" + id + ".json";
  }
  std::string file_path(const std::string& id) const { return folder_ + "/batches/files/" + id; }
  /// The id of the file that gets the results of a batch, which clients see when it has ended.
  std::string results_of(const std::string& id) const {
    return text(json::parse(read(record_path(id))).value_or(Json()), "results");
  }
  static std::string read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
  }

  Output ask(StoreRequest request) {
    std::future<Output> answer;
    Call call;
    {
      const std::lock_guard lock(mutex_);
      call.exchange = {0, ++exchanges_};
      answer = waiting_[call.exchange.id].get_future();
    }
    call.body = std::move(request);
    service_->submit(std::move(call));
    EXPECT_EQ(answer.wait_for(kPatience), std::future_status::ready);
    return answer.get();
  }
  Json object(StoreRequest request) {
    const Output output = ask(std::move(request));
    EXPECT_EQ(output.status, 200) << output.body;
    return json::parse(output.body).value_or(Json());
  }
  static std::string text(const Json& object, std::string_view name) {
    const std::string* found = json::text(json::member(object, name));
    return found == nullptr ? "" : *found;
  }
  static std::int64_t count(const Json& batch, std::string_view name) {
    const Json* counts = json::member(batch, "request_counts");
    const Json* number = counts == nullptr ? nullptr : json::member(*counts, name);
    return number == nullptr ? -1 : json::integer(*number).value_or(-1);
  }

  Output upload(const std::string& content, const std::string& purpose = "batch",
                const std::string& owner = {}) {
    auto sink = service_->receive("multipart/form-data; boundary=XX");
    EXPECT_TRUE(sink.ok());
    const Status status =
        (*sink)->write("--XX\r\nContent-Disposition: form-data; name=purpose\r\n\r\n" + purpose +
                       "\r\n--XX\r\nContent-Disposition: form-data; name=file; filename=in.jsonl"
                       "\r\n\r\n" +
                       content + "\r\n--XX--\r\n");
    EXPECT_TRUE(status.ok()) << status.message;
    StoreRequest request{.resource = Resource::files, .verb = Verb::post, .owner = owner};
    request.upload = *std::move(sink);
    return ask(std::move(request));
  }
  /// The id of a file with these bodies of requests.
  std::string file_of(const std::vector<std::string>& bodies, const std::string& url,
                      const std::string& owner = {}) {
    std::string lines;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      lines += R"({"custom_id":"r)" + std::to_string(i) + R"(","method":"POST","url":")" + url +
               R"(","body":)" + bodies[i] + "}\n";
    }
    return text(json::parse(upload(lines, "batch", owner).body).value_or(Json()), "id");
  }
  /// The id of a file with so many requests.
  std::string file(int requests, const std::string& owner = {}) {
    const std::vector<std::string> bodies(static_cast<std::size_t>(requests),
                                          R"({"prompt":"p","timeout":1})");
    return file_of(bodies, "/v1/completions", owner);
  }
  Json create(const std::string& input, const std::string& owner = {},
              const std::string& endpoint = "/v1/completions") {
    StoreRequest request{.resource = Resource::batches, .verb = Verb::post, .owner = owner};
    request.body = R"({"input_file_id":")" + input + R"(","endpoint":")" + endpoint +
                   R"(","completion_window":"24h","metadata":{"a":"b"}})";
    return object(std::move(request));
  }
  Json batch(const std::string& id, const std::string& owner = {}) {
    return object({.resource = Resource::batch, .verb = Verb::get, .id = id, .owner = owner});
  }
  /// The batch when it has the status.
  Json wait_for(const std::string& id, const std::string& status) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    Json now = batch(id);
    while (text(now, "status") != status && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      now = batch(id);
    }
    EXPECT_EQ(text(now, "status"), status) << json::to_text(now);
    return now;
  }
  /// The code of the first of a batch's errors, and its message.
  static std::string error_of(const Json& batch) {
    const Json* errors = json::member(batch, "errors");
    const Json* data = errors == nullptr ? nullptr : json::member(*errors, "data");
    if (data == nullptr || json::items(*data).empty()) return "";
    const Json& first = json::items(*data)[0];
    return text(first, "code") + ": " + text(first, "message");
  }
  /// Waits until so many requests of a batch have an answer of 200.
  void wait_completed(const std::string& id, std::int64_t requests) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (count(batch(id), "completed") < requests && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(count(batch(id), "completed"), requests);
  }
  void reply(const Call& call, int status = 200, const std::string& body = R"({"ok":true})") {
    Output output{.exchange_id = call.exchange.id, .kind = Output::Kind::whole};
    output.status = static_cast<std::uint16_t>(status);
    output.body = body;
    std::vector<Output> outputs;
    outputs.push_back(std::move(output));
    service_->take(std::move(outputs));
  }
  /// The bytes of a file.
  std::string content(const std::string& id, const std::string& owner = {}) {
    const Output output = ask({.resource = Resource::content, .verb = Verb::get, .id = id, .owner = owner});
    if (output.file == nullptr) return "status " + std::to_string(output.status);
    std::string bytes(output.file->bytes, '\0');
    EXPECT_EQ(::pread(output.file->fd.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    return bytes;
  }
  static std::size_t lines(const std::string& text) {
    return static_cast<std::size_t>(std::ranges::count(text, '\n'));
  }

  std::string folder_;
  BatchEngine engine_;
  std::atomic<std::int64_t> now_s_{1'000'000};
  std::mutex mutex_;
  std::map<std::uint64_t, std::promise<Output>> waiting_;
  std::uint64_t exchanges_ = 0;
  std::unique_ptr<BatchService> service_;
};

}  // namespace troupe::http::test
