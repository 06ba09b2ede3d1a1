#include "http/batch/batch_service.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "base/contain.h"
#include "http/api/model_choice.h"
#include "http/api/openai_error.h"
#include "http/batch/upload.h"

namespace troupe::http {
namespace {

constexpr auto kLook = std::chrono::milliseconds(250);  // at deadlines and at whether the engine is ready
constexpr auto kSyncEvery = std::chrono::milliseconds(100);  // results that end meanwhile are one group
constexpr std::size_t kSyncBytes = 4 << 20;                  // a larger group is written at once
constexpr auto kKeepEvery = std::chrono::seconds(1);         // the counts of a batch
constexpr auto kPause = std::chrono::seconds(1);  // before a request is asked again that the server refused
constexpr int kMostTries = 600;  // of a request for which the server has no part that answers
// Batches whose files are open, three each: the others wait for their turn without, as connections need
// descriptors, too.
constexpr std::size_t kMostOpen = 32;
// Requests with many sequences: one is read, and given to the engine, while another is computed.
constexpr std::size_t kLeastAsked = 2;

/// Choices of each prompt.
std::size_t sequences_of(const Request& request) {
  const std::size_t prompts = request.source.texts.size() + request.source.ids.size();
  const auto choices =
      static_cast<std::size_t>(std::max({1, request.generation.choices, request.generation.best_of}));
  return std::max<std::size_t>(1, prompts) * choices;
}

std::string whole_body(const Output& output) {
  std::string body = output.body;
  for (const std::string& part : output.more) body += part;
  return body;
}

}  // namespace

BatchService::BatchService(BatchStore store, Setup setup)
    : store_(std::move(store)), setup_(std::move(setup)) {}

BatchService::~BatchService() { stop(); }

void BatchService::start(Backend& engine) {
  engine_ = &engine;
  if (store_.unreadable() > 0)
    setup_.log.error("batch_records_unreadable", {kv("records", store_.unreadable())});
  for (const auto& [id, batch] : store_.batches()) {
    if (is_final(batch.status)) continue;
    active_.emplace(id, Active{});
    order_.push_back(id);
  }
  std::ranges::stable_sort(order_, {},
                           [this](const std::string& id) { return store_.batches().at(id).created_s(); });
  thread_ = std::thread([this] { loop(); });
}

Result<std::unique_ptr<BodySink>> BatchService::receive(std::string_view content_type) const {
  return Upload::begin(content_type, store_.upload_path(), setup_.options.file_bytes);
}

void BatchService::submit(Call&& call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
  woken_.notify_one();
}

void BatchService::take(std::vector<Output>&& outputs) {
  const std::lock_guard lock(mutex_);
  std::ranges::move(outputs, std::back_inserter(outputs_));
  woken_.notify_one();
}

void BatchService::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  woken_.notify_one();
}

void BatchService::stop() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = stopping_ = true;
    woken_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void BatchService::loop() {
  for (bool stopping = false; !stopping;) {
    std::vector<Call> calls;
    std::vector<Output> outputs;
    bool draining = false;
    {
      std::unique_lock lock(mutex_);
      woken_.wait_for(lock, kLook, [&] { return !calls_.empty() || !outputs_.empty() || stopping_; });
      calls.swap(calls_);
      outputs.swap(outputs_);
      draining = draining_;
      stopping = stopping_;
    }
    // An exception is a lack of memory: what it has ended is looked at again in the next round.
    for (Call& call : calls) {
      const Status fault = contain(setup_.log, "batch", call.request_id, [&] { answer(call); });
      if (fault.ok()) continue;
      std::vector<Output> answers;
      answers.push_back(error_output(call.exchange.id, fault));
      setup_.deliver(call.exchange.io, std::move(answers));
    }
    for (const Output& output : outputs) {
      (void)contain(setup_.log, "batch", "batch", [&] { take_result(output); });
    }
    if (draining && !std::exchange(drained_, true)) {
      for (auto& [id, active] : active_) withdraw(id, active);
    }
    (void)contain(setup_.log, "batch", "batch", [&] { work(); });
  }
  keep_results(true);
}

void BatchService::work() {
  auto open = static_cast<std::size_t>(
      std::ranges::count_if(active_, [](const auto& entry) { return entry.second.run != nullptr; }));
  for (const std::string& id : order_) {
    const Batch& batch = store_.batches().at(id);
    Active& active = active_.at(id);
    if (active.run == nullptr && !active.ending) {
      if (open >= kMostOpen && batch.status != BatchStatus::validating) continue;
      begin(batch, active, open < kMostOpen);
      open += active.run == nullptr ? 0 : 1;
    } else if (!active.ending && batch.expires_s <= now_s()) {
      withdraw(id, active);
      active.run->give_up(
          {Code::timeout, "the batch expired before this request was done", {}, "batch_expired"});
      active.ending = BatchStatus::expired;
    }
  }
  ask_more();
  keep_results(false);
  end_batches();
}

/// Counts the requests of a new batch and, if it `opens` them, opens its files.
void BatchService::begin(Batch batch, Active& active, bool opens) {
  const auto most_line = static_cast<std::size_t>(setup_.limits.max_body_bytes) + (64 << 10);
  const std::string input = store_.path_of(batch.input);
  if (batch.status == BatchStatus::cancelling) active.ending = BatchStatus::cancelled;
  Status status;
  if (batch.status == BatchStatus::validating) {
    const auto total = BatchRun::count(input, most_line);
    status = total.status();
    if (total.ok()) batch.total = *total;
  }
  if (status.ok() && opens) {
    auto run = BatchRun::open({input, store_.path_of(batch.results), store_.path_of(batch.faults)}, batch.id,
                              batch.endpoint, most_line);
    status = run.status();
    if (run.ok()) active.run = *std::move(run);
  }
  if (!status.ok()) {
    batch.error = status;
    if (batch.error.reason.empty()) batch.error.reason = "storage";
    active.ending = BatchStatus::failed;
  } else if (batch.status == BatchStatus::validating) {
    batch.enter(BatchStatus::in_progress, now_s());
  }
  put(batch);
}

bool BatchService::may_ask() const {
  return sequences_asked_ < setup_.concurrency || asked_.size() < std::min(kLeastAsked, setup_.concurrency);
}

void BatchService::ask_more() {
  if (drained_ || !engine_->health().ready() || Clock::now() < ask_again_) return;
  for (const std::string& id : order_) {
    Active& active = active_.at(id);
    while (active.run != nullptr && !active.ending && may_ask()) {
      auto next = active.run->next();
      active.changed = true;
      if (!next) break;
      ask(id, active, *std::move(next));
    }
  }
}

void BatchService::ask(const std::string& batch, Active& active, BatchRun::Next next) {
  const Route& route = *next.request.route;
  std::string request_id = batch + "_" + std::to_string(next.line);
  const std::size_t model = setup_.more_models.empty() ? 0
                                                       : choose_model(model_of_body(next.request.body),
                                                                      setup_.model, setup_.more_models);
  const ModelFacts& facts = model == 0 ? setup_.model : setup_.more_models[model - 1];
  auto parsed = route.parse(next.request.body, {setup_.limits, facts, request_id, random_(), now_s()});
  if (!parsed.ok()) {
    const Output refused = error_output(0, parsed.status(), 0, route.api);
    active.run->finish({.line = next.line,
                        .custom_id = std::move(next.request.custom_id),
                        .status = refused.status,
                        .request_id = std::move(request_id),
                        .body = refused.body,
                        .error = {}});
    return;
  }
  const std::int64_t left_s = std::max<std::int64_t>(1, store_.batches().at(batch).expires_s - now_s());
  Call call{.exchange = {setup_.io, next_exchange_++},
            .request_id = request_id,
            .received = Clock::now(),
            .body = {},
            .body_bytes = next.request.body.size(),
            .model = model,
            .client = "batch",
            .ignored_fields = {}};
  parsed->request.background = true;
  parsed->request.timeout_ns = std::chrono::nanoseconds(std::chrono::seconds(left_s)).count();
  const std::size_t sequences = sequences_of(parsed->request);
  call.body = std::move(parsed->request);
  asked_.emplace(call.exchange.id, Asked{batch, std::move(next), std::move(request_id), sequences});
  sequences_asked_ += sequences;
  engine_->submit(std::move(call));
}

BatchService::Asked BatchService::forget_asked(std::map<std::uint64_t, Asked>::iterator one) {
  Asked asked = std::move(one->second);
  asked_.erase(one);
  sequences_asked_ -= asked.sequences;
  return asked;
}

void BatchService::take_result(const Output& output) {
  const auto found = asked_.find(output.exchange_id);
  if (found == asked_.end() || output.kind != Output::Kind::whole) return;
  Asked asked = forget_asked(found);
  Active& active = active_.at(asked.batch);
  active.changed = true;
  const bool full = output.status == 429;  // until the batch expires
  if (full || (output.status == 503 && ++asked.next.tries < kMostTries)) {
    active.run->put_back(std::move(asked.next));
    ask_again_ = Clock::now() + kPause;
    return;
  }
  active.run->finish({.line = asked.next.line,
                      .custom_id = std::move(asked.next.request.custom_id),
                      .status = output.status,
                      .request_id = std::move(asked.request_id),
                      .body = whole_body(output),
                      .error = {}});
}

/// Its requests in flight are given up; they are the first to be asked again.
void BatchService::withdraw(const std::string& batch, Active& active) {
  for (auto one = asked_.begin(); one != asked_.end();) {
    if (one->second.batch != batch) {
      ++one;
      continue;
    }
    engine_->cancel({setup_.io, one->first});
    active.run->put_back(forget_asked(one++).next);
  }
}

/// Writes results to the disk, in groups, and from time to time the counts.
void BatchService::keep_results(bool now) {
  const TimePoint time = Clock::now();
  const bool due = now || time - synced_ >= kSyncEvery;
  const bool counts_due = now || time - kept_ >= kKeepEvery;
  for (const std::string& id : order_) {
    Active& active = active_.at(id);
    if (active.run == nullptr || (!due && active.run->pending() < kSyncBytes)) continue;
    Status status = active.run->sync();
    if (status.ok()) status = active.run->status();
    Batch batch = store_.batches().at(id);
    batch.completed = active.run->completed();
    batch.failed = active.run->failed();
    if (!status.ok() && active.ending != BatchStatus::failed) {
      setup_.log.error("batch_failed", {kv("batch", id), kv("why", status.message)});
      withdraw(id, active);
      batch.error = status;
      batch.error.reason = "storage";
      active.ending = BatchStatus::failed;
      put(batch);
    } else if (active.changed && counts_due) {
      active.changed = false;
      put(batch);
    }
  }
  if (due) synced_ = time;
  if (counts_due) kept_ = time;
}

void BatchService::end_batches() {
  std::vector<std::string> left;
  for (const std::string& id : order_) {
    Active& active = active_.at(id);
    const bool done = active.run != nullptr && active.run->done();
    if (!active.ending && !done) {
      left.push_back(id);
      continue;
    }
    finish(store_.batches().at(id), active);
    active_.erase(id);
  }
  order_ = std::move(left);
}

/// Shows the files with results, and the last state.
void BatchService::finish(Batch batch, Active& active) {
  BatchStatus last = active.ending.value_or(BatchStatus::completed);
  if (active.run != nullptr) {
    if (last == BatchStatus::completed) {
      batch.enter(BatchStatus::finalizing, now_s());
      put(batch);
    }
    Status status = active.run->sync();
    batch.completed = active.run->completed();
    batch.failed = active.run->failed();
    const auto show = [&](const std::string& id, const char* what, std::uint64_t bytes) {
      if (bytes == 0) {
        store_.remove(id);
        return false;
      }
      const Status adopted = store_.adopt({id, batch.owner, batch.id + what, "batch_output", bytes, now_s()});
      if (!adopted.ok()) status = adopted;
      return true;
    };
    batch.has_results = show(batch.results, "_output.jsonl", active.run->result_bytes());
    batch.has_faults = show(batch.faults, "_error.jsonl", active.run->fault_bytes());
    if (!status.ok()) {
      batch.error = status;
      batch.error.reason = "storage";
      last = BatchStatus::failed;
    }
  }
  batch.enter(last, now_s());
  put(batch);
  setup_.log.info("batch_ended", {kv("batch", batch.id), kv("status", to_string(last)),
                                  kv("completed", batch.completed), kv("failed", batch.failed)});
}

/// What cannot be kept is known to this process all the same; the next begins with the last state kept.
void BatchService::put(const Batch& batch) {
  const Status status = store_.put(batch);
  if (!status.ok()) setup_.log.error("batch_state_lost", {kv("batch", batch.id), kv("why", status.message)});
}

}  // namespace troupe::http
