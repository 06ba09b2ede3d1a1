#pragma once
// The scheduler, the cache manager and a worker model, connected by queues that deliver in order but after
// any delay, as actors and rings do. The simulation knows the text that each sequence must produce and
// compares.
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/cache/cache_manager.h"
#include "actors/scheduler/scheduler.h"
#include "tests/scheduler/worker_model.h"

namespace troupe::test {

struct Setting {
  std::int32_t blocks = 40, block_tokens = 4, slots = 6, budget = 16, max_length = 60, vocab = 50,
               in_flight = 2;
  int queued = 64;
  std::int64_t queued_tokens = 1 << 20;
  std::size_t max_ids = wire::kMaxTokensInPlan;
  int long_prompt = 12;  ///< more tokens than this are a long prompt
  std::int32_t swap_blocks = 0;
  double swap_failures = 0;  ///< share of copies from or to the swap space that fail
  double poison = 0;         ///< share of sampled rows whose logits are not finite
  PrefixCaching caching = {true, true, {1, 2}};
  double prefill_share = 0;
  bool preempts = true;
  double ratio = 0.75;   ///< of blocks for prompts when nothing preempts
  double repeats = 0.6;  ///< share of prompts that begin like an earlier text
  bool grammars = false;  ///< some sequences may have one
  int step_ms = 0;        ///< --max-prefill-step-ms of a worker that takes token_ns for a token
  std::int64_t token_ns = 0;
  double late = 0;        ///< share of masks that are not made in time
};

class Simulation {
 public:
  Simulation(const Setting& setting, std::uint64_t seed)
      : random_(seed),
        setting_(setting),
        scheduler_(options(setting), setting.caching, setting.max_ids),
        worker_(capacity(setting), setting.budget, setting.token_ns) {
    grammar_.takes_long = [this] { return chance(setting_.late); };
    attach();
  }

  // ------------------------------------------------------------------ events

  SequenceSpec spec(std::int32_t prompt_tokens, std::int32_t max_output) {
    SequenceSpec spec;
    spec.key = {7, ++keys_};
    spec.host = static_cast<std::uint32_t>(keys_ % 3);
    if (!texts_.empty() && chance(setting_.repeats)) {
      const std::vector<TokenId>& text =
          texts_[static_cast<std::size_t>(below(static_cast<int>(texts_.size())))];
      const std::size_t shared = std::min(text.size(), static_cast<std::size_t>(prompt_tokens));
      spec.prompt.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(shared));
    }
    while (static_cast<std::int32_t>(spec.prompt.size()) < prompt_tokens) {
      spec.prompt.push_back(below(setting_.vocab));
    }
    spec.prompt_tokens = prompt_tokens;
    spec.max_output_tokens = max_output;
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
      }
      last_keys.push_back(spec.key);
      request.sequences.push_back(std::move(spec));
    }
    request.prefix = prefix;
    last_status = scheduler_.submit(request);
    if (!last_status.ok()) return false;
    remember(first);
    for (int c = 0; c < choices; ++c) {
      open_[last_keys[static_cast<std::size_t>(c)]] = reference(first, static_cast<std::uint32_t>(c));
    }
    after();
    return true;
  }

  void cancel(const RequestKey& key) {
    scheduler_.cancel(key);
    open_.erase(key);
    after();
  }
  void cancel_any() {
    if (open_.empty()) return;
    auto at = open_.begin();
    std::advance(at, below(static_cast<std::int32_t>(open_.size())));
    cancel(at->first);
  }

  bool plan() {
    const std::span<const std::byte> record = scheduler_.plan(++clock_);
    if (record.empty()) return false;
    if (record.size() > wire::kMaxRecordBytes) complain("a plan is longer than a record");
    check_grants(record);
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
  /// Runs one of the commands whose turn may have come, not always the oldest.
  bool run_command() {
    if (!worker_.has_command()) return false;
    worker_.run_command(static_cast<std::size_t>(below(4)), chance(setting_.swap_failures));
    if (!worker_.complaint().empty()) complain(worker_.complaint());
    return true;
  }

  bool commit() {
    if (results_.empty()) return false;
    if (scheduler_.commit(results_.front(), output_) != Committed::applied)
      complain("a valid result was not applied");
    stale_ = std::move(results_.front());
    results_.pop_front();
    take(output_);
    after();
    return true;
  }

  /// Commits results that must change nothing: one of an old step, a truncated one, one with a wrong field.
  void commit_invalid() {
    if (!stale_.empty() && scheduler_.commit(stale_, output_) == Committed::applied)
      complain("applied a stale result");
    if (results_.empty()) return;
    std::vector<std::byte> bad = results_.front();
    bad.resize(bad.size() - 8);
    if (scheduler_.commit(bad, output_) != Committed::malformed) complain("applied a truncated result");
    bad = results_.front();
    wire::StepResult* result = reinterpret_cast<wire::StepResult*>(bad.data());
    switch (below(3)) {
      case 0: result->rows.count += 1; break;
      case 1: result->step += 1; break;
      case 2: result->logprobs = {0xffffff0, 1}; break;
    }
    if (scheduler_.commit(bad, output_) != Committed::malformed) complain("applied a malformed result");
  }

  bool serve_cache() {
    while (!worker_.done().empty()) {
      wire::RecordView view;
      const bool open = wire::RecordView::open(worker_.done().front(), view);
      CacheGrants news;
      if (!open || !cache_.done(*view.as<wire::CacheDone>(), news)) complain("a command failed");
      if (!news.fetched.empty()) grants_.push_back(std::move(news));
      worker_.done().pop_front();
      check_blocks();
    }
    if (asks_.empty()) return false;
    cache_.answer(asks_.front(), grants_.emplace_back());
    asks_.pop_front();
    for (std::size_t i = 0; i < cache_.commands(); ++i) worker_.receive_command(cache_.command(i));
    check_blocks();
    return true;
  }
  bool grant() {
    if (grants_.empty()) return false;
    scheduler_.granted(grants_.front());
    grants_.pop_front();
    after();
    return true;
  }

  /// GRAMMAR hears the oldest news; or, if there is none, the masks that it made reach the worker.
  bool serve_grammar() {
    if (!news_.empty()) {
      grammar_.receive(news_.front(), setting_.vocab);
      news_.pop_front();
      scheduler_.masks_late(grammar_.take_late());  // before the results of the rows, in any case
      for (auto& masks : grammar_.take_masks()) masks_.push_back(std::move(masks));
      if (!grammar_.complaint().empty()) complain(grammar_.complaint());
      return true;
    }
    if (MasksMade made; (masks_.empty() || chance(0.3)) && grammar_.make(made)) {
      scheduler_.masks_made(made);
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
    scheduler_.detach(orphans, "The worker was lost.", output_);
    take(output_);
    if (orphans == Orphans::fail && !open_.empty()) complain("a sequence survived silently");
    results_.clear();
    stale_.clear();
    attach();
    losing_ = false;
  }

  // ------------------------------------------------------------------ the event loop

  /// One round of the engine's event loop; false when there was nothing to do.
  bool turn() {
    bool moved = commit();
    while (plan()) moved = true;
    while (serve_cache()) moved = true;
    while (grant()) moved = true;
    while (serve_grammar()) moved = true;
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
    const CacheStatus s = cache_.status();
    if (!open_.empty()) complain(std::to_string(open_.size()) + " sequences never finished");
    if (!scheduler_.idle() || scheduler_.running() > 0 || scheduler_.waiting() > 0) complain("not idle");
    if (s.free + s.cached != s.total || cache_.leases() != 0) complain("blocks leaked");
    if (grammar_.open() > 0 || !told_.empty()) complain("GRAMMAR was not told of an end");
  }

  /// Forgets what is published; the same texts are computed again.
  void reset_prefixes() { cache_.reset_prefixes(); }

  void complain(const std::string& what) {
    if (complaint.empty()) complaint = what;
  }
  std::int32_t below(std::int32_t n) {
    return std::uniform_int_distribution<std::int32_t>(0, n - 1)(random_);
  }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }

  Scheduler& scheduler() { return scheduler_; }
  CacheManager& cache() { return cache_; }
  WorkerModel& worker() { return worker_; }
  GrammarModel& grammar() { return grammar_; }
  std::size_t open() const { return open_.size(); }
  bool is_open(const RequestKey& key) const { return open_.contains(key); }

  std::string complaint;  ///< the first thing that went wrong, or empty
  PrefixUse prefix;       ///< of the next submit()
  Status last_status;
  std::vector<RequestKey> last_keys;
  std::map<RequestKey, std::int32_t> killers;  ///< a worker dies before it runs such a position of these
  int deaths = 0;                              ///< of such workers
  std::set<RequestKey> guilty;                 ///< sequences that failed as Finish::poisoned
  std::int64_t finished = 0, failed = 0, tokens = 0, scores = 0;

 private:
  void check_blocks() {
    if (!cache_.sound()) complain("a block is lost or has two owners");
    const CacheStatus s = cache_.status();
    if (s.free + s.cached + s.leased + s.moving != s.total) complain("block counts do not add up");
    if (s.swap.free + s.swap.cached + s.swap.moving != s.swap.total)
      complain("swap block counts do not add up");
  }

  struct Expected {
    std::vector<TokenId> tokens;
    Finish finish = Finish::length;
    std::size_t seen = 0;
    std::int32_t prompt_tokens = 0, next_prompt_score = 1, losses = 0;
    bool scheduled = false;
    bool constrained = false;
  };

  static config::SchedulerOptions options(const Setting& s) {
    config::SchedulerOptions o;
    o.max_num_seqs = s.slots;
    o.max_num_batched_tokens = s.budget;
    o.long_prefill_token_threshold = s.long_prompt;
    o.min_prefill_share = s.prefill_share;
    o.max_prefill_step_ms = s.step_ms;
    o.preempts = s.preempts;
    o.kv_cache_ratio = s.ratio;
    o.max_queued_requests = s.queued;
    o.max_queued_tokens = s.queued_tokens;
    return o;
  }
  static wire::Capacity capacity(const Setting& s) {
    wire::Capacity c;
    c.kv_blocks = s.blocks;
    c.block_tokens = s.block_tokens;
    c.max_slots = s.slots;
    c.max_tokens_per_step = s.budget;
    c.max_model_len = s.max_length;
    c.vocab_size = s.vocab;
    c.max_steps_in_flight = s.in_flight;
    c.swap_blocks = s.swap_blocks;
    return c;
  }

  void attach() {
    ++epoch_;
    worker_.reset(epoch_);
    cache_.reset(epoch_, setting_.blocks, setting_.block_tokens, {setting_.swap_blocks, 4096});
    scheduler_.attach(epoch_, capacity(setting_), output_);
    take(output_);
    after();
  }

  /// What the scheduler's actor does after every message: forwards its requests to the cache manager.
  void after() {
    tell_grammar({});
    CacheAsks asks;
    if (scheduler_.take_asks(asks)) asks_.push_back(std::move(asks));
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
    GrammarStep news;
    if (scheduler_.take_grammar(news)) {
      if (!setting_.grammars) complain("news for GRAMMAR without a grammar");
      if (news.epoch != epoch_ || (!news.rows.empty() && news.step != step)) complain("news of another step");
      for (const GrammarStart& start : news.starts) told_[start.key], come_out_[start.key];
      for (const GrammarTokens& some : news.sequences)
        told_[some.key] += static_cast<std::size_t>(some.count);
      for (const MaskAsk& row : news.rows) --rows[{row.slot.slot, row.slot.generation}];
      if (told_ != come_out_) complain("GRAMMAR knows other tokens than the clients");
      for (const RequestKey& key : news.ends) told_.erase(key), come_out_.erase(key);
      news_.push_back(std::move(news));
    }
    for (const auto& [slot, asks] : rows) {
      if (asks != 0) complain("a gated row is not asked for exactly once");
    }
    if (told_ != come_out_) complain("GRAMMAR was not told of a token");
  }

  /// Keeps a few prompts with their answers, for later prompts to begin with.
  void remember(const SequenceSpec& spec) {
    constexpr std::size_t kTexts = 12;
    std::vector<TokenId> text = spec.prompt;
    const Expected expected = reference(spec, 0);
    text.insert(text.end(), expected.tokens.begin(), expected.tokens.end());
    if (texts_.size() < kTexts) texts_.emplace_back();
    texts_[static_cast<std::size_t>(below(static_cast<int>(texts_.size())))] = std::move(text);
  }

  /// The tokens that the model gives when this sequence runs alone, one token at a time.
  Expected reference(const SequenceSpec& spec, std::uint32_t choice) const {
    Expected expected;
    expected.prompt_tokens = spec.prompt_tokens;
    std::uint64_t prefix = 0;
    for (TokenId id : spec.prompt) prefix = extend(prefix, id);
    const std::int32_t room = std::min(setting_.max_length, setting_.blocks * setting_.block_tokens);
    const std::int32_t length = std::min(spec.prompt_tokens + spec.max_output_tokens, room);
    expected.constrained = spec.grammar != 0;
    GrammarState grammar(spec.grammar);
    for (std::int32_t n = static_cast<std::int32_t>(spec.prompt.size()); n < length; ++n) {
      TokenId token = next_token(prefix, choice, setting_.vocab);
      if (expected.constrained && n - spec.prompt_tokens >= spec.gated_from)
        token = grammar.nearest(token, setting_.vocab);
      grammar.take(token);
      expected.tokens.push_back(token);
      prefix = extend(prefix, token);
      if (std::find(spec.stop_ids.begin(), spec.stop_ids.end(), token) != spec.stop_ids.end()) {
        expected.finish = Finish::stop;
        break;
      }
    }
    return expected;
  }

  void take(const StepOutput& out) {
    for (const StepTokens& host : out.hosts) {
      for (const SequenceTokens& s : host.sequences) take(host, s);
    }
  }

  void take(const StepTokens& host, const SequenceTokens& s) {
    const auto found = open_.find(s.key);
    if (found == open_.end()) return complain("output for a sequence that has ended");
    Expected& e = found->second;
    if ((s.scheduled_ns != 0) == e.scheduled && s.tokens > 0)
      complain("scheduled_ns comes once, with the first output");
    e.scheduled |= s.scheduled_ns != 0;
    if (e.constrained) come_out_[s.key] += static_cast<std::size_t>(s.tokens);
    for (std::int32_t i = 0; i < s.tokens; ++i, ++e.seen, ++tokens) {
      const TokenId token = host.tokens[static_cast<std::size_t>(s.first_token + i)];
      if (e.seen >= e.tokens.size() || token != e.tokens[e.seen])
        complain("a token differs from the reference");
    }
    for (std::int32_t i = 0; i < s.scores; ++i, ++scores) {
      const PositionLogprobs& score = host.scores[static_cast<std::size_t>(s.first_score + i)];
      if (score.position < e.prompt_tokens) {
        if (score.position != e.next_prompt_score++) complain("prompt logprobs are not in order, each once");
      } else if (score.position != e.prompt_tokens + static_cast<std::int32_t>(e.seen) - 1 ||
                 score.tops != 2 ||
                 host.tops[static_cast<std::size_t>(score.first_top)].token != score.chosen.token) {
        complain("a logprob belongs to another token");
      }
    }
    if (s.finish == Finish::none) return;
    if (s.finish == Finish::error || s.finish == Finish::aborted || s.finish == Finish::poisoned) {
      ++failed;
      if (s.finish == Finish::poisoned) guilty.insert(s.key);
      if (s.error.empty()) complain("an error without a sentence");
      if (!losing_ && worker_.poisoned().count(s.key) == 0) complain("an error without a cause");
    } else {
      ++finished;
      if (s.finish != e.finish || e.seen != e.tokens.size())
        complain("finished at another place than the reference");
    }
    open_.erase(found);
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
      const std::span<const BlockId> lease = cache_.table(key);
      if (blocks.size() > lease.size() || !std::equal(blocks.begin(), blocks.end(), lease.begin())) {
        complain("a row uses blocks that its lease does not hold");
      }
    }
  }

  std::mt19937_64 random_;
  Setting setting_;
  Scheduler scheduler_;
  CacheManager cache_;
  WorkerModel worker_;
  GrammarModel grammar_;
  StepOutput output_;
  std::deque<GrammarStep> news_;
  std::deque<std::vector<std::byte>> masks_;
  std::map<RequestKey, std::size_t> told_, come_out_;  ///< tokens of sequences with a grammar
  std::deque<CacheAsks> asks_;
  std::deque<CacheGrants> grants_;
  std::deque<std::vector<std::byte>> results_;
  std::vector<std::byte> stale_;
  std::vector<std::vector<TokenId>> texts_;
  std::map<RequestKey, Expected> open_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<RequestKey, std::vector<BlockId>>> tables_;
  std::uint32_t epoch_ = 0;
  std::uint64_t keys_ = 0;
  std::int64_t clock_ = 0;
  bool losing_ = false;
};

}  // namespace troupe::test
