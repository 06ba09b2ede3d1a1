#include "actors/grammar/form_service.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/contain.h"

namespace troupe {
namespace {

/// Of the memory for compiled forms, what their sources as checked may take.
constexpr std::size_t kCheckedShare = 8;

HashKey random_key() {
  std::random_device random;
  const auto word = [&random] { return (std::uint64_t{random()} << 32) | random(); };
  return {word(), word()};
}

}  // namespace

FormService::FormService(FormServiceSetup setup, std::function<void(std::uint64_t)> notify)
    : setup_(std::move(setup)),
      notify_(std::move(notify)),
      hash_key_(random_key()),
      checked_(setup_.cache_bytes / kCheckedShare, setup_.cache_entries),
      cache_(setup_.cache_bytes, setup_.cache_entries) {
  const auto vocabulary = std::make_shared<const FormVocabulary>(setup_.vocabulary);
  for (auto& process : processes_) {
    process = std::make_unique<CompileProcess>(setup_.executable, vocabulary, setup_.limits);
  }
  lookups_ = std::jthread([this](const std::stop_token& stop) { run_lookups(stop); });
  checks_ = std::jthread([this](const std::stop_token& stop) { run_checks(stop); });
  for (std::size_t i = 0; i < kCompilers; ++i) {
    compilers_[i] = std::jthread([this, i](const std::stop_token& stop) { run_compiler(stop, i); });
  }
}

FormService::~FormService() {
  for (auto& process : processes_) process->give_up();
  lookups_.request_stop();
  checks_.request_stop();
  for (std::jthread& compiler : compilers_) compiler.request_stop();
  lookups_.join();
  checks_.join();
  for (std::jthread& compiler : compilers_) compiler.join();
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
    setup_.pulses->lookups.begin();
    const std::uint64_t ticket = job.ticket;
    Status fault = contain(setup_.log, "form look-up", {}, [&] { look_up(std::move(job)); });
    if (!fault.ok()) finish(ticket, {std::move(fault), nullptr});
    setup_.pulses->lookups.end();
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
    return finish(waiter.ticket, {name_part(std::move(refusal), waiter), nullptr});
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
  check_more_.notify_one();
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

void FormService::run_checks(const std::stop_token& stop) {
  for (;;) {
    WorkPtr work;
    {
      std::unique_lock lock(mutex_);
      if (!check_more_.wait(lock, stop, [this] { return !to_check_.empty(); })) return;
      work = take_next(to_check_);
    }
    setup_.pulses->checks.begin();
    check(work);
    setup_.pulses->checks.end();
  }
}

void FormService::check(const WorkPtr& work) {
  if (setup_.before_check) setup_.before_check(work->form);
  Result<grammar::Source> source = failure(Code::internal, "a form was not checked");
  Status fault = contain(setup_.log, "form check", {}, [&] {
    source =
        grammar::prepare(std::move(work->form), *setup_.texts, setup_.any_whitespace, setup_.form_limits);
  });
  if (!fault.ok()) source = std::move(fault);
  std::unique_lock lock(mutex_);
  --clients_[work->client].at_work;
  if (!source.ok()) {
    if (source.status().code == Code::invalid_argument) checked_.put(work->name, {source.status(), {}});
    const std::vector<Waiter> waiters = close(work);
    lock.unlock();
    for (const Waiter& waiter : waiters) finish(waiter.ticket, {name_part(source.status(), waiter), nullptr});
    return;
  }
  checked_.put(work->name, {{}, *source});
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
  compile_more_.notify_all();
}

// Compiler i works when i others do: the last one starts its process last, if ever.
bool FormService::has_work(std::size_t compiler) const {
  return !to_compile_.empty() && compiling_ >= compiler;
}

void FormService::run_compiler(const std::stop_token& stop, std::size_t compiler) {
  for (;;) {
    WorkPtr work;
    {
      std::unique_lock lock(mutex_);
      if (!compile_more_.wait(lock, stop, [&] { return has_work(compiler); }) || stop.stop_requested())
        return;
      work = take_next(to_compile_);
      ++compiling_;
    }
    compile_more_.notify_all();
    bool lasting = false;
    CompileOutcome outcome;
    Status fault = contain(setup_.log, "form compiler", {},
                           [&] { outcome = processes_[compiler]->compile(work->source, lasting); });
    if (!fault.ok()) outcome = {std::move(fault), nullptr};
    std::vector<Waiter> waiters;
    {
      const std::lock_guard lock(mutex_);
      --compiling_;
      --clients_[work->client].at_work;
      if (lasting && outcome.status.code != Code::internal) {
        // If that fails, the form is compiled again when it comes again.
        (void)contain(setup_.log, "form cache", {}, [&] { cache_.put(work->source, outcome); });
      }
      waiters = close(work);
    }
    finish_known(waiters, outcome);
  }
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

/// A refusal by the compiler, which knows the form alone: its message goes on from the place.
Status FormService::name_place(Status refusal, const Waiter& waiter) {
  if (refusal.code != Code::invalid_argument || waiter.param.empty()) return refusal;
  refusal.param = waiter.param + refusal.param;
  refusal.message = refusal.param + " " + refusal.message;
  return name_part(std::move(refusal), waiter);
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
