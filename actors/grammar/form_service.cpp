#include "actors/grammar/form_service.h"

#include <algorithm>
#include <utility>

#include "base/contain.h"

namespace troupe {

FormService::FormService(FormServiceSetup setup, std::function<void(std::uint64_t)> notify)
    : setup_(std::move(setup)), notify_(std::move(notify)), cache_(setup_.cache_bytes, setup_.cache_entries) {
  const auto vocabulary = std::make_shared<const std::string>(grammar::to_bytes(setup_.vocabulary));
  const grammar::TokenTable table(setup_.vocabulary);
  for (auto& process : processes_) {
    process = std::make_unique<CompileProcess>(setup_.executable, vocabulary, table, setup_.limits);
  }
  checker_ = std::jthread([this](const std::stop_token& stop) { check(stop); });
  for (std::size_t i = 0; i < kCompilers; ++i) {
    compilers_[i] = std::jthread([this, i](const std::stop_token& stop) { compile(stop, i); });
  }
}

FormService::~FormService() {
  for (auto& process : processes_) process->give_up();
  checker_.request_stop();
  for (std::jthread& compiler : compilers_) compiler.request_stop();
  checker_.join();
  for (std::jthread& compiler : compilers_) compiler.join();
}

void FormService::submit(std::uint64_t ticket, grammar::Form form) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({ticket, std::move(form)});
  }
  check_more_.notify_one();
}

CompileOutcome FormService::take(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  auto node = outcomes_.extract(ticket);
  if (node.empty()) return {failure(Code::internal, "a form was compiled for nobody"), nullptr};
  return std::move(node.mapped());
}

void FormService::check(const std::stop_token& stop) {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      if (!check_more_.wait(lock, stop, [this] { return !jobs_.empty(); })) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    const std::uint64_t ticket = job.ticket;
    Status fault = contain(setup_.log, "form check", {}, [&] { look_up(std::move(job)); });
    if (!fault.ok()) finish(ticket, {std::move(fault), nullptr});
  }
}

void FormService::look_up(Job job) {
  Waiter waiter{job.ticket, job.form.param, std::move(job.form.places)};
  auto source =
      grammar::prepare(std::move(job.form), *setup_.tokenizer, setup_.any_whitespace, setup_.form_limits);
  if (!source.ok()) return finish(job.ticket, {name_part(source.status(), waiter), nullptr});
  std::unique_lock lock(mutex_);
  if (const CompileOutcome* known = cache_.find(*source)) {
    CompileOutcome outcome = *known;
    lock.unlock();
    outcome.status = name_place(std::move(outcome.status), waiter);
    return finish(job.ticket, std::move(outcome));
  }
  const std::string key = FormCache::key(*source);
  if (sources_.size() >= setup_.most_waiting && !in_progress_.contains(key)) {
    lock.unlock();
    return finish(job.ticket, {too_many_waiting(waiter.param), nullptr});
  }
  const bool known = in_progress_.contains(key);
  // The source first: if there is no memory for the waiter, it is compiled for no request, which does no harm.
  if (!known) sources_.push_back(*std::move(source));
  in_progress_[key].push_back(std::move(waiter));
  if (known) return;  // it is being compiled for another request
  lock.unlock();
  compile_more_.notify_all();
}

// Compiler i works when i others do: the last one starts its process last, if ever.
bool FormService::has_work(std::size_t compiler) const { return !sources_.empty() && compiling_ >= compiler; }

void FormService::compile(const std::stop_token& stop, std::size_t compiler) {
  for (;;) {
    grammar::Source source;
    {
      std::unique_lock lock(mutex_);
      if (!compile_more_.wait(lock, stop, [&] { return has_work(compiler); }) || stop.stop_requested())
        return;
      source = std::move(sources_.front());
      sources_.pop_front();
      ++compiling_;
    }
    compile_more_.notify_all();
    bool lasting = false;
    CompileOutcome outcome;
    std::string key;
    Status fault = contain(setup_.log, "form compiler", {}, [&] {
      key = FormCache::key(source);
      outcome = processes_[compiler]->compile(source, lasting);
    });
    if (!fault.ok()) outcome = {std::move(fault), nullptr};
    std::vector<Waiter> waiters;
    {
      const std::lock_guard lock(mutex_);
      --compiling_;
      if (lasting && outcome.status.code != Code::internal) {
        // If that fails, the form is compiled again when it comes again.
        (void)contain(setup_.log, "form cache", {}, [&] { cache_.put(source, outcome); });
      }
      if (auto node = in_progress_.extract(key); !node.empty()) waiters = std::move(node.mapped());
    }
    for (const Waiter& waiter : waiters)
      finish(waiter.ticket, {name_place(outcome.status, waiter), outcome.form});
  }
}

Status FormService::too_many_waiting(const std::string& param) const {
  return {Code::overloaded,
          param + " has to be compiled, and " + std::to_string(setup_.most_waiting) +
              " other forms are waiting for that: try again later",
          param, "grammar_queue_full"};
}

/// A refusal that names a part of the form by its path below the form's field; the result names the place where
/// the request has that part.
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

void FormService::finish(std::uint64_t ticket, CompileOutcome outcome) {
  {
    const std::lock_guard lock(mutex_);
    outcomes_.emplace(ticket, std::move(outcome));
  }
  notify_(ticket);
}

}  // namespace troupe
