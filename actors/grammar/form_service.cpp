#include "actors/grammar/form_service.h"

#include <algorithm>
#include <utility>

#include "base/contain.h"

namespace troupe {
namespace {

/// Of the memory for compiled forms, what their sources as checked may take.
constexpr std::size_t kCheckedShare = 8;

}  // namespace

FormService::FormService(FormServiceSetup setup, std::function<void(std::uint64_t)> notify)
    : setup_(std::move(setup)),
      notify_(std::move(notify)),
      hash_key_(random_key()),
      checked_(setup_.cache_bytes / kCheckedShare, setup_.cache_entries),
      cache_(setup_.cache_bytes, setup_.cache_entries) {
  for (auto& process : processes_) process = std::make_unique<FormProcess>(setup_.process);
  lookups_ = std::jthread([this](const std::stop_token& stop) { run_lookups(stop); });
  for (std::size_t i = 0; i < kProcesses; ++i) {
    threads_[i] = std::jthread([this, i](const std::stop_token& stop) { run_process(stop, i); });
  }
}

FormService::~FormService() {
  for (auto& process : processes_) process->give_up();
  lookups_.request_stop();
  for (std::jthread& thread : threads_) thread.request_stop();
  lookups_.join();
  for (std::jthread& thread : threads_) thread.join();
}

void FormService::submit(std::uint64_t ticket, grammar::Form form, std::string client) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({ticket, std::move(form), std::move(client)});
  }
  look_more_.notify_one();
}

CompileOutcome FormService::take(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  auto node = outcomes_.extract(ticket);
  if (node.empty()) return {failure(Code::internal, "a form was compiled for nobody"), nullptr};
  return std::move(node.mapped());
}

void FormService::drop(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  if (looked_up_ == ticket) looked_up_ = 0;
  std::erase_if(jobs_, [&](const Job& job) { return job.ticket == ticket; });
  for (std::deque<WorkPtr>* queue : {&to_check_, &to_compile_}) {
    for (std::size_t i = 0; i < queue->size(); ++i) {
      const WorkPtr work = (*queue)[i];
      std::erase_if(work->waiters, [&](const Waiter& waiter) { return waiter.ticket == ticket; });
      if (!work->waiters.empty()) continue;
      queue->erase(queue->begin() + static_cast<std::ptrdiff_t>(i--));
      close(work);
    }
  }
  for (auto& [name, work] : by_name_) {
    std::erase_if(work->waiters, [&](const Waiter& waiter) { return waiter.ticket == ticket; });
  }
}

void FormService::run_lookups(const std::stop_token& stop) {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      if (!look_more_.wait(lock, stop, [this] { return !jobs_.empty(); })) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      looked_up_ = job.ticket;
    }
    setup_.pulse->begin();
    const std::uint64_t ticket = job.ticket;
    Status fault = contain(setup_.process.log, "form look-up", {}, [&] { look_up(std::move(job)); });
    if (!fault.ok()) finish(ticket, {std::move(fault), nullptr});
    setup_.pulse->end();
  }
}

void FormService::look_up(Job job) {
  const BlockHash name = name_of(job.form, hash_key_);
  Waiter waiter{job.ticket, job.form.param, std::move(job.form.places)};
  std::unique_lock lock(mutex_);
  if (std::exchange(looked_up_, 0) != job.ticket) return;  // it was dropped
  const CheckedForm* known = checked_.find(name);
  if (known != nullptr && !known->refusal.ok()) {
    Status refusal = known->refusal;
    lock.unlock();
    return refuse({std::move(waiter)}, refusal);
  }
  if (known != nullptr) {
    if (const CompileOutcome* compiled = cache_.find(known->source)) {
      const CompileOutcome outcome = *compiled;
      lock.unlock();
      return finish_known({std::move(waiter)}, outcome);
    }
  }
  if (const auto open = by_name_.find(name); open != by_name_.end()) {
    open->second->waiters.push_back(std::move(waiter));
    return;
  }
  if (Status full = no_room(job.client, waiter.param); !full.ok()) {
    lock.unlock();
    return finish(waiter.ticket, {std::move(full), nullptr});
  }
  auto work = std::make_shared<Work>(Work{name, std::move(job.client), std::move(job.form), {}, {}});
  work->waiters.push_back(std::move(waiter));
  by_name_.emplace(name, work);
  ++clients_[work->client].open;
  if (known != nullptr) {
    work->source = known->source;
    return to_compile(lock, work);
  }
  to_check_.push_back(std::move(work));
  lock.unlock();
  work_more_.notify_all();
}

Status FormService::no_room(const std::string& client, const std::string& param) const {
  const auto refuse = [&](std::size_t most, const char* whose) {
    return Status{Code::overloaded,
                  param + " has to be compiled, and " + std::to_string(most) + whose +
                      " forms are waiting for that: try again later",
                  param, "grammar_queue_full"};
  };
  if (to_check_.size() + to_compile_.size() >= setup_.most_waiting)
    return refuse(setup_.most_waiting, " other");
  const auto known = clients_.find(client);
  if (known == clients_.end() || known->second.open < setup_.most_of_client) return {};
  return refuse(setup_.most_of_client, " of this client's");
}

/// The next form: of the clients with the fewest at work, the first. The queue is not empty.
FormService::WorkPtr FormService::take_next(std::deque<WorkPtr>& queue) {
  const auto at_work = [this](const WorkPtr& work) { return clients_[work->client].at_work; };
  const auto next = std::min_element(queue.begin(), queue.end(), [&](const WorkPtr& a, const WorkPtr& b) {
    return at_work(a) < at_work(b);
  });
  WorkPtr work = std::move(*next);
  queue.erase(next);
  ++clients_[work->client].at_work;
  return work;
}

/// The form is not new any more. Returns who has waited for it.
std::vector<FormService::Waiter> FormService::close(const WorkPtr& work) {
  by_name_.erase(work->name);
  if (const auto it = by_key_.find(work->key); it != by_key_.end() && it->second == work) by_key_.erase(it);
  const auto client = clients_.find(work->client);
  if (--client->second.open == 0) clients_.erase(client);
  return std::exchange(work->waiters, {});
}

// Process i works while i others do: the later ones are started last, if ever.
void FormService::run_process(const std::stop_token& stop, std::size_t process) {
  const auto has_work = [&] { return busy_ >= process && (may_compile() || !to_check_.empty()); };
  for (;;) {
    WorkPtr work;
    bool compiles = false;
    {
      std::unique_lock lock(mutex_);
      if (!work_more_.wait(lock, stop, has_work) || stop.stop_requested()) return;
      compiles = may_compile();
      work = take_next(compiles ? to_compile_ : to_check_);
      ++busy_;
      if (compiles) ++compiling_;
    }
    work_more_.notify_all();
    compiles ? compile(*processes_[process], work) : check(*processes_[process], work);
    work_more_.notify_all();
  }
}

void FormService::check(FormProcess& process, const WorkPtr& work) {
  bool lasting = false;
  Result<grammar::Source> source = failure(Code::internal, "a form was not checked");
  Status fault =
      contain(setup_.process.log, "form check", {}, [&] { source = process.check(work->form, lasting); });
  if (!fault.ok()) source = std::move(fault);
  std::unique_lock lock(mutex_);
  --busy_;
  --clients_[work->client].at_work;
  work->form = {};
  if (lasting) checked_.put(work->name, {source.status(), source.ok() ? *source : grammar::Source()});
  if (!source.ok()) {
    const std::vector<Waiter> waiters = close(work);
    lock.unlock();
    return refuse(waiters, source.status());
  }
  if (work->waiters.empty()) {
    close(work);
    return;
  }
  work->source = *std::move(source);
  if (const CompileOutcome* known = cache_.find(work->source)) {  // it was sent in other words
    const CompileOutcome outcome = *known;
    const std::vector<Waiter> waiters = close(work);
    lock.unlock();
    return finish_known(waiters, outcome);
  }
  to_compile(lock, work);
}

void FormService::compile(FormProcess& process, const WorkPtr& work) {
  bool lasting = false;
  CompileOutcome outcome;
  const Status fault = contain(setup_.process.log, "form compiler", {},
                               [&] { outcome = process.compile(work->source, lasting); });
  std::vector<Waiter> waiters;
  {
    const std::lock_guard lock(mutex_);
    --busy_;
    --compiling_;
    --clients_[work->client].at_work;
    if (lasting && fault.ok()) {
      // If that fails, the form is compiled again when it comes again.
      (void)contain(setup_.process.log, "form cache", {}, [&] { cache_.put(work->source, outcome); });
    }
    waiters = close(work);
  }
  fault.ok() ? finish_known(waiters, outcome) : refuse(waiters, fault);
}

/// Has a checked form compiled, or lets it wait for one that is the same in other words. Unlocks.
void FormService::to_compile(std::unique_lock<std::mutex>& lock, const WorkPtr& work) {
  work->key = FormCache::key(work->source);
  const auto [same, is_new] = by_key_.emplace(work->key, work);
  if (!is_new) {
    const WorkPtr other = same->second;
    for (Waiter& waiter : close(work)) other->waiters.push_back(std::move(waiter));
    return lock.unlock();
  }
  to_compile_.push_back(work);
  lock.unlock();
  work_more_.notify_all();
}

/// A refusal that names a part of the form by its path below the form's field; the result names the place
/// where the request has that part.
Status FormService::name_part(Status refusal, const Waiter& waiter) {
  for (const auto& [path, place] : waiter.places) {
    const std::string part = waiter.param + path;
    const std::string rest = refusal.param.substr(std::min(part.size(), refusal.param.size()));
    if (!refusal.param.starts_with(part) || !(rest.empty() || rest.front() == '.')) continue;
    if (refusal.message.starts_with(part)) refusal.message.replace(0, part.size(), place);
    refusal.param = place + rest;
    break;
  }
  return refusal;
}

/// A refusal by who knows the checked form alone: its message goes on from the place.
Status FormService::name_place(Status refusal, const Waiter& waiter) {
  if (refusal.ok() || waiter.param.empty()) return refusal;
  refusal.param = waiter.param + refusal.param;
  refusal.message = refusal.param + " " + refusal.message;
  return name_part(std::move(refusal), waiter);
}

/// A refusal that names its place within the request.
void FormService::refuse(const std::vector<Waiter>& waiters, const Status& refusal) {
  for (const Waiter& waiter : waiters) finish(waiter.ticket, {name_part(refusal, waiter), nullptr});
}

void FormService::finish_known(const std::vector<Waiter>& waiters, const CompileOutcome& outcome) {
  for (const Waiter& waiter : waiters)
    finish(waiter.ticket, {name_place(outcome.status, waiter), outcome.form});
}

void FormService::finish(std::uint64_t ticket, CompileOutcome outcome) {
  {
    const std::lock_guard lock(mutex_);
    outcomes_.emplace(ticket, std::move(outcome));
  }
  notify_(ticket);
}

}  // namespace troupe
