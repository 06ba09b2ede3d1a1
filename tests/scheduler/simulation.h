#pragma once
// The scheduler, the cache manager and a worker model, connected by queues that deliver in order but after
// any delay, as actors and rings do. Each sequence's text is compared with what it must be.
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/cache/cache_manager.h"
#include "actors/scheduler/scheduler.h"
#include "tests/scheduler/front_model.h"
#include "tests/scheduler/images.h"
#include "tests/scheduler/setting.h"
#include "tests/scheduler/worker_model.h"

namespace troupe::test {

class Simulation {
 public:
  Simulation(const Setting& setting, std::uint64_t seed)
      : random_(seed),
        setting_(setting),
        worker_(capacity_of(setting), setting.budget, setting.token_ns),
        fronts_(setting) {
    worker_.oracle = [this](const RequestKey& key, std::int32_t output) { return fronts_.next(key, output); };
    start_engine();
  }

  // ------------------------------------------------------------------ events

  SequenceSpec spec(std::int32_t prompt_tokens, std::int32_t max_output) {
    SequenceSpec spec;
    spec.key = {7, ++keys_};
    spec.host = static_cast<std::uint32_t>(keys_ % 3);
    if (!texts_.empty() && chance(setting_.repeats)) {
      const auto& [text, media] = texts_[static_cast<std::size_t>(below(static_cast<int>(texts_.size())))];
      const std::size_t shared = std::min(text.size(), static_cast<std::size_t>(prompt_tokens));
      spec.prompt.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(shared));
      repeat_images(*this, media, prompt_tokens, spec);
    }
    const std::size_t own = spec.prompt.size();
    while (static_cast<std::int32_t>(spec.prompt.size()) < prompt_tokens) {
      spec.prompt.push_back(below(setting_.vocab));
    }
    if (setting_.media_tokens > 0) add_images(*this, static_cast<std::int32_t>(own), spec);
    spec.prompt_tokens = prompt_tokens, spec.max_output_tokens = max_output;
    return spec;
  }

  /// Submits `choices` sequences of one prompt. True if they were accepted. Sets last_keys and last_status.
  bool submit(const SequenceSpec& first, int choices = 1) {
    Submit request;
    last_keys.clear();
    for (int c = 0; c < choices; ++c) {
      SequenceSpec spec = first;
      spec.sampling.choice = static_cast<std::uint32_t>(c);
      if (c > 0) {
        spec.key = {7, ++keys_};
        spec.parent = first.key;
        spec.prompt.clear();
        spec.media.clear();
      }
      last_keys.push_back(spec.key);
      request.sequences.push_back(std::move(spec));
    }
    request.prefix = prefix, request.background = setting_.batches > 0 && chance(setting_.batches);
    request.arrived_ns = ++arrivals_;
    const std::uint32_t front = fronts > 1 ? static_cast<std::uint32_t>(arrivals_ % fronts) : 0;
    FrontModel::Request kept{front, request, first.prompt, first.media};
    for (const RequestKey& key : last_keys) worker_.encoder().expected[key] = first.media;
    last_status = scheduler_->submit(request, front);
    if (!last_status.ok()) return false;
    fronts_.add(std::move(kept));
    remember(first);
    after();
    return true;
  }

  void cancel(const RequestKey& key) {
    scheduler_->cancel(key);
    fronts_.open.erase(key);
    after();
  }
  void cancel_any() {
    if (fronts_.open.empty()) return;
    auto at = fronts_.open.begin();
    std::advance(at, below(static_cast<std::int32_t>(fronts_.open.size())));
    cancel(at->first);
  }

  bool plan() {
    const std::span<const std::byte> record = scheduler_->plan(++clock_);
    std::vector<std::vector<std::byte>> media;
    scheduler_->take_media(media);
    for (const std::vector<std::byte>& one : media) worker_.encoder().receive(one);
    if (record.empty()) return !media.empty();
    if (record.size() > wire::kMaxRecordBytes) complain("a plan is longer than a record");
    check_grants(record);
    check_rows(record);
    worker_.receive_plan(record);
    tell_grammar(record);
    after();
    return true;
  }

  bool run_worker() {
    if (!worker_.has_plan() || worker_.waits_for_masks()) return false;
    if (worker_.plan_reaches(killers)) {
      ++deaths;
      lose_worker(Orphans::requeue);
      return true;
    }
    const double share = setting_.poison;
    results_.push_back(worker_.run_plan([&](const RequestKey&) { return share > 0 && chance(share); }));
    if (!worker_.complaint().empty()) complain(worker_.complaint());
    return true;
  }
  bool encode() {
    std::vector<std::byte> done;
    if (!worker_.encoder().encode(chance(setting_.media_failures), done)) return false;
    encoded_.push_back(std::move(done));
    return true;
  }
  bool take_encoded() {
    if (encoded_.empty()) return false;
    if (scheduler_->media_done(encoded_.front(), output_) == Committed::malformed)
      complain("a valid MediaDone was not applied");
    encoded_.pop_front();
    take();
    after();
    return true;
  }

  /// Runs one of the commands whose turn may have come, not always the oldest.
  bool run_command() {
    if (!worker_.has_command()) return false;
    worker_.run_command(static_cast<std::size_t>(below(4)), chance(setting_.swap_failures));
    if (!worker_.complaint().empty()) complain(worker_.complaint());
    return true;
  }

  bool commit() {
    if (results_.empty()) return false;
    if (scheduler_->commit(results_.front(), output_) != Committed::applied)
      complain("a valid result was not applied");
    stale_ = std::move(results_.front());
    results_.pop_front();
    take();
    after();
    return true;
  }

  /// Commits results that must change nothing: one of an old step, a truncated one, one with a wrong field.
  void commit_invalid() {
    if (!stale_.empty() && scheduler_->commit(stale_, output_) == Committed::applied)
      complain("applied a stale result");
    if (results_.empty()) return;
    std::vector<std::byte> bad = results_.front();
    bad.resize(bad.size() - 8);
    if (scheduler_->commit(bad, output_) != Committed::malformed) complain("applied a truncated result");
    bad = results_.front();
    wire::StepResult* result = reinterpret_cast<wire::StepResult*>(bad.data());
    switch (below(3)) {
      case 0: result->rows.count += 1; break;
      case 1: result->step += 1; break;
      case 2: result->logprobs = {0xffffff0, 1}; break;
    }
    if (scheduler_->commit(bad, output_) != Committed::malformed) complain("applied a malformed result");
  }

  bool serve_cache() {
    while (!worker_.done().empty()) {
      wire::RecordView view;
      const bool open = wire::RecordView::open(worker_.done().front(), view);
      CacheGrants update;
      if (!open || !cache_->done(*view.as<wire::CacheDone>(), update)) complain("a command failed");
      if (!update.fetched.empty()) grants_.push_back(std::move(update));
      worker_.done().pop_front();
      check_blocks();
    }
    if (asks_.empty()) return false;
    cache_->answer(asks_.front(), grants_.emplace_back());
    asks_.pop_front();
    for (std::size_t i = 0; i < cache_->commands(); ++i) worker_.receive_command(cache_->command(i));
    check_blocks();
    return true;
  }
  bool grant() {
    if (grants_.empty()) return false;
    scheduler_->granted(grants_.front());
    grants_.pop_front();
    after();
    return true;
  }

  /// GRAMMAR gets the oldest update; or, if there is none, the masks that it made reach the worker.
  bool serve_grammar() {
    if (!grammar_updates_.empty()) {
      grammar_.receive(grammar_updates_.front(), setting_.vocab);
      grammar_updates_.pop_front();
      scheduler_->masks_late(grammar_.take_late());  // before the results of the rows, in any case
      for (auto& masks : grammar_.take_masks()) masks_.push_back(std::move(masks));
      if (!grammar_.complaint().empty()) complain(grammar_.complaint());
      return true;
    }
    if (MasksMade made; (masks_.empty() || chance(0.3)) && grammar_.make(made)) {
      scheduler_->masks_made(made);
      after();
      return true;
    }
    if (masks_.empty()) return false;
    worker_.receive_masks(masks_.front());
    masks_.pop_front();
    if (!worker_.complaint().empty()) complain(worker_.complaint());
    return true;
  }

  void lose_worker(Orphans orphans) {
    losing_ = true;
    scheduler_->detach(orphans, "The worker was lost.", output_);
    take();
    if (orphans == Orphans::fail && !fronts_.open.empty()) complain("a sequence survived silently");
    results_.clear();
    encoded_.clear();
    stale_.clear();
    attach();
    losing_ = false;
  }

  /// The engine dies with all that it knows: results in flight, queue, names of blocks, grammar states. The
  /// fronts submit what is open again, with the tokens and scores that they have taken; in any order, a share
  /// of them `alone`.
  void lose_engine(double alone = 0) {
    ++engine_deaths;
    for (auto* queue : {&results_, &masks_, &encoded_}) queue->clear();
    asks_.clear();
    grants_.clear();
    grammar_updates_.clear();
    stale_.clear();
    reported_.clear();
    fronts_.come_out.clear();
    fronts_.alone.clear();
    add(past_, scheduler_->totals());
    const std::set<std::uint32_t> held = std::exchange(held_, {});
    start_engine();
    for (const std::uint32_t front : held) hold(front, true);
    std::vector<std::size_t> order = fronts_.open_requests();
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t request : order) {
      Submit again = fronts_.again(request, chance(alone));
      if (const Status status = scheduler_->submit(again, fronts_.front_of(request)); !status.ok())
        complain("refused again: " + status.message);
      after();
    }
  }

  /// The front is behind, or has caught up again.
  void hold(std::uint32_t front, bool on) {
    if (on) held_.insert(front);
    if (!on) held_.erase(front);
    scheduler_->hold(front, on);
    after();
  }
  /// The front dies, and its requests with it.
  void drop_front(std::uint32_t front) {
    held_.erase(front);
    scheduler_->drop_front(front);
    std::erase_if(fronts_.open, [&](const auto& one) { return one.second.front == front; });
    after();
  }

  // ------------------------------------------------------------------ the event loop

  /// One round of the engine's event loop; false when there was nothing to do.
  bool turn() {
    bool moved = commit();
    while (plan()) moved = true;
    while (serve_cache()) moved = true;
    while (grant()) moved = true;
    while (serve_grammar()) moved = true;
    while (take_encoded()) moved = true;
    moved |= encode();
    moved |= run_worker();
    if (!moved) moved = run_command();
    return moved;
  }

  /// Runs rounds until there is nothing to do; false when that takes more than `limit` rounds.
  bool drain(int limit) {
    for (int i = 0; i < limit; ++i) {
      if (!turn()) return true;
    }
    return false;
  }

  /// Complains unless every sequence has ended and every block is free.
  void check_idle() {
    const CacheStatus s = cache_->status();
    if (!fronts_.open.empty()) complain(std::to_string(fronts_.open.size()) + " sequences never finished");
    if (!scheduler_->idle() || scheduler_->running() > 0 || scheduler_->waiting() > 0) complain("not idle");
    if (s.free + s.cached != s.total || cache_->leases() != 0) complain("blocks leaked");
    if (grammar_.open() > 0 || !reported_.empty()) complain("GRAMMAR was not told of an end");
  }

  /// Forgets what is published; the same texts are computed again.
  void reset_prefixes() { cache_->reset_prefixes(); }

  void complain(const std::string& what) {
    if (complaint.empty()) complaint = what;
  }
  std::int32_t below(std::int32_t n) {
    return std::uniform_int_distribution<std::int32_t>(0, n - 1)(random_);
  }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }

  /// Of all engines.
  SchedulerTotals totals() const {
    SchedulerTotals all = past_;
    add(all, scheduler_->totals());
    return all;
  }
  Scheduler& scheduler() { return *scheduler_; }
  CacheManager& cache() { return *cache_; }
  WorkerModel& worker() { return worker_; }
  const FrontModel& clients() const { return fronts_; }
  GrammarModel& grammar() { return grammar_; }
  std::size_t open() const { return fronts_.open.size(); }
  bool is_open(const RequestKey& key) const { return fronts_.open.contains(key); }

  std::string complaint;  ///< the first thing that went wrong, or empty
  PrefixUse prefix;       ///< of the next submit()
  Status last_status;
  std::vector<RequestKey> last_keys;
  std::map<RequestKey, std::int32_t> killers;  ///< a worker dies before it runs such a position of these
  int deaths = 0;                              ///< of such workers
  int engine_deaths = 0;
  std::uint32_t fronts = 1;  ///< submissions go to them in turn

 private:
  void check_blocks() {
    if (!cache_->sound()) complain("a block is lost or has two owners");
    const CacheStatus s = cache_->status();
    if (s.free + s.cached + s.leased + s.moving != s.total) complain("block counts do not add up");
    if (s.swap.free + s.swap.cached + s.swap.moving != s.swap.total) complain("swap counts do not add up");
  }

  static void add(SchedulerTotals& to, const SchedulerTotals& from) {
    to.steps += from.steps;
    to.discarded_tokens += from.discarded_tokens;
    to.preempted += from.preempted;
    to.stalled_rows += from.stalled_rows;
    to.prompt_tokens += from.prompt_tokens;
    to.cached_tokens += from.cached_tokens;
    to.fetches += from.fetches;
    to.failed_fetches += from.failed_fetches;
    to.encoded += from.encoded;
    to.drafts += from.drafts;
  }

  void start_engine() {
    scheduler_.emplace(options_of(setting_), setting_.caching, setting_.max_ids);
    cache_.emplace();
    grammar_.restart();
    grammar_.takes_long = [this] { return chance(setting_.late); };
    attach();
  }

  void attach() {
    ++epoch_;
    worker_.reset(epoch_);
    cache_->reset(epoch_, setting_.blocks, setting_.block_tokens, {setting_.swap_blocks, 4096});
    scheduler_->attach(epoch_, capacity_of(setting_), output_);
    take();
    after();
  }

  /// What the scheduler's actor does after every message.
  void after() {
    tell_grammar({});
    CacheAsks asks;
    if (scheduler_->take_asks(asks)) asks_.push_back(std::move(asks));
  }

  /// Checks that each gated row of the plan is asked for once, and no other; and that GRAMMAR is told of the
  /// tokens that have come out, and of no other.
  void tell_grammar(std::span<const std::byte> record) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, int> rows;
    std::uint64_t step = 0;
    if (wire::RecordView view; !record.empty() && wire::RecordView::open(record, view)) {
      step = view.as<wire::StepPlan>()->step;
      for (const wire::PlanRow& row : view.array(view.as<wire::StepPlan>()->rows)) {
        if ((row.flags & wire::kGated) != 0) ++rows[{row.slot.slot, row.slot.generation}];
      }
    }
    GrammarStep update;
    if (scheduler_->take_grammar(update)) {
      if (!setting_.grammars) complain("an update for GRAMMAR without a grammar");
      if (update.epoch != epoch_ || (!update.rows.empty() && update.step != step))
        complain("an update of another step");
      for (const GrammarStart& start : update.starts) reported_[start.key], fronts_.come_out[start.key];
      for (const GrammarTokens& some : update.sequences)
        reported_[some.key] += static_cast<std::size_t>(some.count);
      for (const MaskAsk& row : update.rows) --rows[{row.slot.slot, row.slot.generation}];
      if (reported_ != fronts_.come_out) complain("GRAMMAR knows other tokens than the clients");
      for (const RequestKey& key : update.ends) reported_.erase(key), fronts_.come_out.erase(key);
      grammar_updates_.push_back(std::move(update));
    }
    for (const auto& [slot, asks] : rows) {
      if (asks != 0) complain("a gated row is not asked for exactly once");
    }
    if (reported_ != fronts_.come_out) complain("GRAMMAR was not told of a token");
  }

  /// Keeps a few prompts with their answers, for later prompts to begin with.
  void remember(const SequenceSpec& spec) {
    constexpr std::size_t kTexts = 12;
    std::vector<TokenId> text = spec.prompt;
    const FrontModel::Expected expected = fronts_.reference(spec, 0);
    text.insert(text.end(), expected.tokens.begin(), expected.tokens.end());
    if (texts_.size() < kTexts) texts_.emplace_back();
    texts_[static_cast<std::size_t>(below(static_cast<int>(texts_.size())))] = {std::move(text), spec.media};
  }

  void take() {
    fronts_.take(output_, [this](const RequestKey& key) {
      return losing_ || worker_.poisoned().contains(key) ||
             (setting_.media_failures > 0 && !worker_.encoder().expected[key].empty());
    });
    if (!fronts_.complaint().empty()) complain(fronts_.complaint());
  }

  /// Checks that every block that a row uses was granted to its sequence.
  void check_grants(std::span<const std::byte> record) {
    wire::RecordView view;
    if (!wire::RecordView::open(record, view) || view.as<wire::StepPlan>() == nullptr)
      return complain("not a plan");
    const wire::StepPlan& plan = *view.as<wire::StepPlan>();
    for (const SlotRef& slot : view.array(plan.finished)) tables_.erase({slot.slot, slot.generation});
    for (const wire::StartSequence& start : view.array(plan.started)) {
      tables_[{start.slot.slot, start.slot.generation}] = {start.key, {}};
    }
    for (const wire::BlockRun& run : view.array(plan.blocks)) {
      std::vector<BlockId>& blocks = tables_[{run.slot.slot, run.slot.generation}].second;
      const std::span<const BlockId> more = view.array(run.blocks);
      blocks.insert(blocks.end(), more.begin(), more.end());
    }
    for (const wire::PlanRow& row : view.array(plan.rows)) {
      const auto& [key, blocks] = tables_[{row.slot.slot, row.slot.generation}];
      const std::span<const BlockId> lease = cache_->table(key);
      if (blocks.size() > lease.size() || !std::equal(blocks.begin(), blocks.end(), lease.begin())) {
        complain("a row uses blocks that its lease does not hold");
      }
    }
  }

  /// Checks that no row is of a front that is held, and that one that must be alone is.
  void check_rows(std::span<const std::byte> record) {
    wire::RecordView view;
    if (!wire::RecordView::open(record, view)) return;
    const std::span<const wire::PlanRow> rows = view.array(view.as<wire::StepPlan>()->rows);
    for (const wire::PlanRow& row : rows) {
      const RequestKey key = tables_[{row.slot.slot, row.slot.generation}].first;
      const auto found = fronts_.open.find(key);
      if (found != fronts_.open.end() && held_.contains(found->second.front))
        complain("a row of a front that is held");
      if (fronts_.alone.contains(key) && rows.size() != 1) complain("it is not alone");
    }
  }

  std::mt19937_64 random_;
  Setting setting_;
  std::optional<Scheduler> scheduler_;
  std::optional<CacheManager> cache_;
  WorkerModel worker_;
  GrammarModel grammar_;
  FrontModel fronts_;
  StepOutput output_;
  std::deque<GrammarStep> grammar_updates_;
  std::deque<std::vector<std::byte>> masks_;
  std::map<RequestKey, std::size_t> reported_;  ///< tokens of sequences with a grammar
  std::deque<CacheAsks> asks_;
  std::deque<CacheGrants> grants_;
  std::deque<std::vector<std::byte>> results_, encoded_;
  std::vector<std::byte> stale_;
  std::vector<std::pair<std::vector<TokenId>, std::vector<SequenceItem>>> texts_;
  std::set<std::uint32_t> held_;  ///< fronts
  SchedulerTotals past_;          ///< of engines that have died
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<RequestKey, std::vector<BlockId>>> tables_;
  std::uint32_t epoch_ = 0;
  std::uint64_t keys_ = 0;
  std::int64_t arrivals_ = 0;
  std::int64_t clock_ = 0;
  bool losing_ = false;
};

}  // namespace troupe::test
