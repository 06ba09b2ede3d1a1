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
// descriptors, too. One that ends while it waits has them open for that long.
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

/// The first reason stays: others follow from it.
void set_error(Batch& batch, const Status& why) {
  if (!batch.error.ok()) return;
  batch.error = why;
  if (batch.error.reason.empty()) batch.error.reason = "storage";
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
      begin(batch, active, open < kMostOpen);
      open += active.run == nullptr ? 0 : 1;
    }
    if (!active.ending && batch.expires_s <= now_s()) {
      withdraw(id, active);
      active.ending = BatchStatus::expired;
    }
  }
  ask_more();
  keep_results(false);
  end_batches();
}

BatchPaths BatchService::paths_of(const Batch& batch) const {
  return {store_.path_of(batch.input), store_.path_of(batch.results), store_.path_of(batch.faults)};
}

std::size_t BatchService::most_line_bytes() const {
  return static_cast<std::size_t>(setup_.limits.max_body_bytes) + (64 << 10);
}

Status BatchService::open_files(const Batch& batch, Active& active) {
  auto run = BatchRun::open(paths_of(batch), batch.id, batch.endpoint, most_line_bytes());
  if (run.ok()) active.run = *std::move(run);
  return run.status();
}

/// Counts the requests of a new batch and, if it `opens` them, opens its files. Of one that has to wait, the
/// results of an earlier server are counted: the state that was kept may be a second older.
void BatchService::begin(Batch batch, Active& active, bool opens) {
  if (batch.status == BatchStatus::cancelling) {
    active.ending = BatchStatus::cancelled;
    return;
  }
  const bool is_new = batch.status == BatchStatus::validating;
  batch.error = {};  // of a server that could not keep its end
  if (!is_new && !opens) {
    if (std::exchange(active.counted, true)) return;
    const auto results = BatchRun::stored(paths_of(batch), batch.id);
    if (!results.ok()) return;  // what is wrong is said when its turn comes
    batch.completed = results->completed;
    batch.failed = results->failed;
    return store_.remember(batch);
  }
  Status status;
  if (is_new) {
    const auto total = BatchRun::count(store_.path_of(batch.input), most_line_bytes());
    status = total.status();
    if (total.ok()) batch.total = *total;
  }
  if (status.ok() && opens) status = open_files(batch, active);
  if (!status.ok()) {
    set_error(batch, status);
    active.ending = BatchStatus::failed;
  } else if (is_new) {
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
      set_error(batch, status);
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

/// Gives the requests of an expired batch their errors, and writes what waits for the disk. Not ok: the lines
/// of some requests are missing.
Status BatchService::write_last_lines(const Batch& batch, Active& active) {
  const bool expired = active.ending == BatchStatus::expired;
  if (expired && active.run == nullptr) {
    if (Status status = open_files(batch, active); !status.ok()) return status;
  }
  if (active.run == nullptr) return {};
  if (expired)
    active.run->give_up(
        {Code::timeout, "the batch expired before this request was done", {}, "batch_expired"});
  if (Status status = active.run->sync(); !status.ok()) return status;
  return active.run->status();
}

/// Shows the files that have lines. Not ok: one of them could not be shown; the batch does not name it, and
/// its lines stay on the disk.
Status BatchService::show_files(Batch& batch, const BatchResults& results) {
  Status status;
  const auto show = [&](const std::string& id, const char* what, std::uint64_t bytes) {
    if (bytes == 0) {
      store_.remove(id);
      return false;
    }
    const Status adopted = store_.adopt({id, batch.owner, batch.id + what, "batch_output", bytes, now_s()});
    if (!adopted.ok()) status = adopted;
    return adopted.ok();
  };
  batch.completed = results.completed;
  batch.failed = results.failed;
  batch.has_results = show(batch.results, "_output.jsonl", results.result_bytes);
  batch.has_faults = show(batch.faults, "_error.jsonl", results.fault_bytes);
  return status;
}

/// Shows the files with results, and the last state. If a file or the state cannot be kept, this process
/// shows the batch as ended, and the next ends it again.
void BatchService::finish(Batch batch, Active& active) {
  BatchStatus last = active.ending.value_or(BatchStatus::completed);
  if (last == BatchStatus::completed) {
    batch.enter(BatchStatus::finalizing, now_s());
    put(batch);
  }
  const Status written = write_last_lines(batch, active);
  if (!written.ok()) active.run.reset();  // it counts lines that are not on the disk
  const auto results = active.run != nullptr ? Result<BatchResults>(active.run->results())
                                             : BatchRun::stored(paths_of(batch), batch.id);
  const Status shown = results.ok() ? show_files(batch, *results) : results.status();
  for (const Status& status : {written, shown}) {
    if (status.ok()) continue;
    set_error(batch, status);
    last = BatchStatus::failed;
  }
  batch.enter(last, now_s());
  const Status kept = shown.ok() ? store_.put(batch) : shown;
  if (!kept.ok()) {
    set_error(batch, kept);
    keep_in_memory(batch, kept);
  }
  setup_.log.info("batch_ended", {kv("batch", batch.id), kv("status", to_string(last)),
                                  kv("completed", batch.completed), kv("failed", batch.failed)});
}

void BatchService::put(const Batch& batch) {
  if (const Status status = store_.put(batch); !status.ok()) keep_in_memory(batch, status);
}

/// This process knows the state all the same; the next begins with the last that was kept.
void BatchService::keep_in_memory(const Batch& batch, const Status& why) {
  setup_.log.error("batch_state_lost", {kv("batch", batch.id), kv("why", why.message)});
  store_.remember(batch);
}

}  // namespace troupe::http
