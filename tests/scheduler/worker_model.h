#pragma once
// A worker that checks every plan against the rules of ipc/wire.h. Its "model" computes the next token from
// the whole prefix as stored in paged KV memory, so a wrong block, a missing position or a late copy changes
// the text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "ipc/wire.h"
#include "tests/scheduler/encoder_model.h"
#include "tests/scheduler/grammar_model.h"
#include "tests/scheduler/mask_store.h"
#include "tests/scheduler/text_model.h"
#include "tests/scheduler/worker_slot.h"

namespace troupe::test {

class WorkerModel {
 public:
  /// A step takes `token_ns` for each token, up to five times that; or 1 µs when it is 0.
  explicit WorkerModel(const wire::Capacity& capacity, std::int32_t step_budget, std::int64_t token_ns = 0)
      : capacity_(capacity), budget_(step_budget), token_ns_(token_ns) {}

  /// Starts a new epoch: forgets everything and fills the KV memory with garbage.
  void reset(std::uint32_t epoch) {
    auto media = std::move(encoder_.expected);
    auto guess = std::move(oracle);
    *this = WorkerModel(capacity_, budget_, token_ns_);
    encoder_.expected = std::move(media);
    oracle = std::move(guess);
    encoder_.begin(epoch, capacity_.media_tokens);
    epoch_ = epoch;
    kv_.assign(static_cast<std::size_t>(capacity_.kv_blocks * capacity_.block_tokens), 0xdeadull + epoch);
    swap_.assign(static_cast<std::size_t>(capacity_.swap_blocks * capacity_.block_tokens), 0xbadull);
    users_.assign(static_cast<std::size_t>(capacity_.kv_blocks), 0);
  }

  void receive_plan(std::span<const std::byte> record) {
    masks_.expect(record);
    plans_.emplace_back(record.begin(), record.end());
  }
  void receive_command(std::span<const std::byte> record) {
    commands_.emplace_back(record.begin(), record.end());
  }
  /// Masks follow their plan; those of another epoch are dropped.
  void receive_masks(std::span<const std::byte> record) {
    wire::RecordView view;
    if (!wire::RecordView::open(record, view) || view.as<wire::StepMasks>() == nullptr)
      return complain("not masks");
    if (view.header().epoch != epoch_) return;
    masks_.take(view, *view.as<wire::StepMasks>());
  }

  bool has_plan() const { return !plans_.empty(); }
  /// True while the oldest plan has a gated row without its mask.
  bool waits_for_masks() const { return has_plan() && masks_.waits(last_step_ + 1); }
  bool has_command() const { return !commands_.empty(); }

  /// Runs one command: the first, from the `nth` on, that need not wait for another. Its CacheDone goes to
  /// done(). Commands may run before plans that were sent earlier, because they have a ring of their own, and
  /// they run in any order that `after` allows. `fail`: a copy from or to the swap space leaves garbage.
  void run_command(std::size_t nth = 0, bool fail = false) {
    for (std::size_t i = 0; i < commands_.size(); ++i) {
      const std::size_t at = (nth + i) % commands_.size();
      wire::RecordView view;
      const wire::CacheCommand* command =
          wire::RecordView::open(commands_[at], view) ? view.as<wire::CacheCommand>() : nullptr;
      if (command == nullptr || command->header.epoch != epoch_) return complain("bad cache command");
      if (command->id < 1 || command->after >= command->id || !commands_run_.insert(command->id).second) {
        return complain("bad id of a cache command");
      }
      if (!ended_through(command->after)) {
        commands_run_.erase(command->id);
        continue;
      }
      copy(*command, view.array(command->copies), fail && command->op != wire::CacheOp::copy_blocks);
      commands_.erase(commands_.begin() + static_cast<std::ptrdiff_t>(at));
      return;
    }
    complain("no command can run");
  }
  std::deque<std::vector<std::byte>>& done() { return done_; }

  /// True when the oldest plan runs a sequence of `keys` up to the position given there, or further.
  bool plan_reaches(const std::map<RequestKey, std::int32_t>& keys) const {
    wire::RecordView view;
    if (plans_.empty() || !wire::RecordView::open(plans_.front(), view)) return false;
    const wire::StepPlan& plan = *view.as<wire::StepPlan>();
    for (const wire::PlanRow& row : view.array(plan.rows)) {
      RequestKey key{};
      if (const auto slot = slots_.find(row.slot.slot); slot != slots_.end()) key = slot->second.key;
      for (const wire::StartSequence& start : view.array(plan.started)) {
        if (start.slot == row.slot) key = start.key;
      }
      const auto found = keys.find(key);
      if (found != keys.end() && row.position + row.tokens > found->second) return true;
    }
    return false;
  }

  /// Runs the oldest plan and returns its StepResult. Where `poison` is true, a row's logits are not finite.
  template <class Poison>
  std::vector<std::byte> run_plan(Poison&& poison) {
    const std::vector<std::byte> bytes = plans_.front();
    plans_.pop_front();
    wire::RecordView view;
    const wire::StepPlan* plan = wire::RecordView::open(bytes, view) ? view.as<wire::StepPlan>() : nullptr;
    if (plan == nullptr) return complain("bad plan"), std::vector<std::byte>{};
    while (!ended_through(plan->after_cache_command) && has_command()) run_command();
    if (!ended_through(plan->after_cache_command)) complain("plan names a cache command that was not sent");
    apply(view, *plan);
    return execute(view, *plan, poison);
  }

  EncoderModel& encoder() { return encoder_; }
  /// The output token of a sequence that must come, or -1: what draft tokens that are right are taken from.
  Oracle oracle;
  /// Draft tokens of gated rows that were accepted.
  std::int64_t accepted_behind_masks() const { return accepted_behind_masks_; }

  /// The first violation of a rule, or empty.
  const std::string& complaint() const {
    return !complaint_.empty()          ? complaint_
           : masks_.complaint().empty() ? encoder_.complaint()
                                        : masks_.complaint();
  }
  std::int64_t rows_run() const { return rows_run_; }
  std::int64_t forked_rows() const { return forked_rows_; }
  /// Positions that sequences found written when they started, other than by a fork inside a block.
  std::int64_t cached_tokens() const { return cached_tokens_; }
  std::set<RequestKey>& poisoned() { return poisoned_; }
  /// Blocks that came back from the swap space unharmed.
  std::int64_t swapped_in() const { return swapped_in_; }

 private:
  /// True when every command up to `id` has run.
  bool ended_through(std::uint64_t id) const {
    return static_cast<std::uint64_t>(std::distance(commands_run_.begin(), commands_run_.upper_bound(id))) ==
           id;
  }

  void copy(const wire::CacheCommand& command, std::span<const wire::BlockCopy> copies, bool fail) {
    const bool out = command.op == wire::CacheOp::swap_out, in = command.op == wire::CacheOp::swap_in;
    std::set<BlockId> targets;
    for (const wire::BlockCopy& copy : copies) {
      const std::int32_t from_end = in ? capacity_.swap_blocks : capacity_.kv_blocks;
      const std::int32_t to_end = out ? capacity_.swap_blocks : capacity_.kv_blocks;
      if (copy.from < 0 || copy.from >= from_end || copy.to < 0 || copy.to >= to_end)
        return complain("a command names a block out of range");
      if (!targets.insert(copy.to).second) return complain("a block is a target twice");
      for (std::int32_t i = 0; i < capacity_.block_tokens; ++i) {
        const std::uint64_t value = in ? *swap_cell(copy.from, i) : *cell(copy.from, i);
        *(out ? swap_cell(copy.to, i) : cell(copy.to, i)) = fail ? 0xfa11ull : value;
      }
      swapped_in_ += in && !fail ? 1 : 0;
    }
    wire::RecordWriter<wire::CacheDone> writer;
    writer.begin(epoch_);
    writer.record().id = command.id;
    writer.record().failed = fail ? 1 : 0;
    const std::span<const std::byte> record = writer.finish();
    done_.emplace_back(record.begin(), record.end());
  }

  using Slot = WorkerSlot;

  void complain(const std::string& what) {
    if (complaint_.empty()) complaint_ = what;
  }
  std::uint64_t* cell(BlockId block, std::int32_t i) {
    return &kv_[static_cast<std::size_t>(block * capacity_.block_tokens + i)];
  }
  std::uint64_t* swap_cell(BlockId block, std::int32_t i) {
    return &swap_[static_cast<std::size_t>(block * capacity_.block_tokens + i)];
  }
  std::uint64_t* cell(const Slot& slot, std::int32_t position) {
    return cell(slot.blocks[static_cast<std::size_t>(position / capacity_.block_tokens)],
                position % capacity_.block_tokens);
  }
  Slot* find(SlotRef ref) {
    const auto found = slots_.find(ref.slot);
    if (found == slots_.end() || found->second.ref != ref) return complain("no such slot"), nullptr;
    return &found->second;
  }

  void apply(const wire::RecordView& view, const wire::StepPlan& plan) {
    if (plan.header.epoch != epoch_) complain("plan of another epoch");
    if (plan.step != ++last_step_) complain("steps do not rise by one");
    if (!view.holds(plan.finished) || !view.holds(plan.started) || !view.holds(plan.tokens) ||
        !view.holds(plan.blocks) || !view.holds(plan.rows)) {
      return complain("a span leaves the record");
    }
    for (SlotRef ref : view.array(plan.finished)) {
      if (!slots_.contains(ref.slot) && encoder_.knows(ref)) {
        encoder_.finish(ref);
        continue;
      }
      Slot* slot = find(ref);
      if (slot == nullptr) return;
      for (BlockId block : slot->blocks) --users_[static_cast<std::size_t>(block)];
      slots_.erase(ref.slot);
      encoder_.finish(ref);
    }
    for (const wire::StartSequence& start : view.array(plan.started)) {
      if (start.slot.slot >= static_cast<std::uint32_t>(capacity_.max_slots))
        return complain("slot out of range");
      if (slots_.contains(start.slot.slot)) return complain("slot taken twice");
      if (start.slot.generation <= generations_[start.slot.slot]) return complain("generation is not fresh");
      if (start.prompt_tokens < 1 || start.known_tokens < start.prompt_tokens) return complain("bad start");
      generations_[start.slot.slot] = start.slot.generation;
      Slot& slot = slots_[start.slot.slot];
      slot.ref = start.slot;
      slot.key = start.key;
      slot.prompt_tokens = start.prompt_tokens;
      slot.known = start.known_tokens;
      slot.max_tokens = start.max_tokens;
      slot.proposes = start.proposes;
      if (slot.proposes > capacity_.max_proposed || (slot.proposes > 0 && slot.max_tokens == 0))
        return complain("cannot propose so many");
      slot.sampling = start.sampling;
      slot.media = encoder_.start(start.slot, start.key);
    }
    for (const wire::TokenRun& run : view.array(plan.tokens)) {
      Slot* slot = find(run.slot);
      if (slot == nullptr) return;
      const std::span<const TokenId> ids = view.array(run.ids);
      if (run.position != slot->sent || ids.empty()) return complain("token runs are not contiguous");
      for (TokenId id : ids) slot->append(id);
      slot->sent += static_cast<std::int32_t>(ids.size());
      if (slot->sent > slot->known) return complain("more ids than known_tokens");
    }
    for (const wire::BlockRun& run : view.array(plan.blocks)) {
      Slot* slot = find(run.slot);
      if (slot == nullptr) return;
      if (run.first != static_cast<std::int32_t>(slot->blocks.size()))
        return complain("block runs leave a gap");
      for (BlockId block : view.array(run.blocks)) {
        if (block < 0 || block >= capacity_.kv_blocks) return complain("block out of range");
        ++users_[static_cast<std::size_t>(block)];
        slot->blocks.push_back(block);
      }
    }
  }

  template <class Poison>
  std::vector<std::byte> execute(const wire::RecordView& view, const wire::StepPlan& plan, Poison&& poison) {
    std::set<std::uint32_t> seen;
    std::int32_t total = 0, sampled = 0;
    rows_.clear();
    tokens_.clear();
    scores_.clear();
    writer_.begin(epoch_);
    for (const wire::PlanRow& row : view.array(plan.rows)) {
      Slot* slot = find(row.slot);
      if (slot == nullptr || !seen.insert(row.slot.slot).second)
        return complain("two rows of a slot"), writer_out();
      total += row.tokens;
      if ((row.flags & wire::kFromLast) != 0) {
        sampled += row.tokens;
        run_from_last(*slot, row, poison);
      } else {
        sampled += (row.flags & wire::kSamples) != 0 ? 1 : 0;
        run_row(*slot, row, poison);
      }
      if (!complaint_.empty()) return writer_out();
    }
    masks_.forget(last_step_);
    if (total > budget_) complain("over the token budget");
    if (capacity_.max_drafts > 0 && sampled > capacity_.max_sampled) complain("too many rows of logits");
    const auto rows = writer_.array(rows_);
    const auto tokens = writer_.array(tokens_);
    const auto scores = writer_.array(scores_);
    writer_.record().step = plan.step;
    writer_.record().rows = rows;
    writer_.record().tokens = tokens;
    writer_.record().logprobs = scores;
    const auto slowness = static_cast<std::int64_t>(1 + mix(plan.step, 3) % 5);
    writer_.record().finished_ns = token_ns_ == 0 ? 1000 : token_ns_ * total * slowness;
    return writer_out();
  }

  template <class Poison>
  void run_row(Slot& slot, const wire::PlanRow& row, Poison&& poison) {
    const std::int32_t end = row.position + row.tokens;
    ++rows_run_;
    if (row.tokens < 1) return complain("an empty row");
    if (slot.run < 0) {
      // The first row of this sequence: tokens before it must already be in blocks that another one has
      // written, its parent or one whose blocks were published.
      if (row.position % capacity_.block_tokens == 0) {
        cached_tokens_ += row.position;
      } else {
        ++forked_rows_;
        if (row.position != slot.prompt_tokens - 1)
          return complain("begins neither at a block nor at the prompt's end");
      }
      slot.run = row.position;
    }
    if ((row.flags & wire::kAgain) != 0) {
      if ((row.flags & wire::kSamples) == 0 || end < slot.known || row.position >= slot.run ||
          end >= static_cast<std::int32_t>(slot.tokens.size()))
        return complain("nothing to sample again");
      slot.tokens.resize(static_cast<std::size_t>(end));
      slot.prefix.resize(static_cast<std::size_t>(end));
      slot.run = row.position;
    }
    if (row.position != slot.run) return complain("positions are not contiguous");
    if (end > capacity_.max_model_len) return complain("beyond max_model_len");
    if (end > static_cast<std::int32_t>(slot.tokens.size())) return complain("an id is not known");
    if (end < slot.known && slot.sent <= end) return complain("the id after the row is not known");
    const std::size_t needed =
        static_cast<std::size_t>((end + capacity_.block_tokens - 1) / capacity_.block_tokens);
    if (needed > slot.blocks.size()) return complain("a position without a block");
    for (std::int32_t p = row.position; p < end; ++p) {
      const BlockId block = slot.blocks[static_cast<std::size_t>(p / capacity_.block_tokens)];
      if (users_[static_cast<std::size_t>(block)] != 1)
        return complain("writes a block that another one holds");
      *cell(slot, p) = slot.prefix[static_cast<std::size_t>(p)];
    }
    for (std::int32_t p = 0; p < end; ++p) {
      if (*cell(slot, p) != slot.prefix[static_cast<std::size_t>(p)]) {
        return complain("attends to position " + std::to_string(p) + " of " + std::to_string(end) +
                        " that was not written");
      }
    }
    slot.run = end;
    encoder_.run(slot.ref, slot.media, row.position, end);
    const bool samples = (row.flags & wire::kSamples) != 0;
    if (samples != (end == static_cast<std::int32_t>(slot.tokens.size()) && slot.sent == slot.known)) {
      return complain("samples elsewhere than at the end");
    }
    score_prompt(slot, row.position, end);
    const bool gated = (row.flags & wire::kGated) != 0;
    if (gated && !samples) return complain("gated, but does not sample");
    if (!samples) return;
    sample(slot, poison(slot.key), gated ? &masks_of(row)->words.front() : nullptr);
    propose(slot);
  }

  const RowMasks* masks_of(const wire::PlanRow& row) {
    const RowMasks* masks = masks_.find(last_step_, row.slot);
    static const RowMasks kNone{{{}}};
    return masks != nullptr ? masks : (complain("a gated row samples without its mask"), &kNone);
  }

  /// Says draft tokens of the next row.
  void propose(Slot& slot) {
    slot.proposed.clear();
    if (rows_.back().error != wire::RowError::none) return;
    slot.guess(last_step_, capacity_.vocab_size, oracle);
    tokens_.insert(tokens_.end(), slot.proposed.begin(), slot.proposed.end());
    rows_.back().proposed = static_cast<std::int32_t>(slot.proposed.size());
  }

  /// What a rejected draft token leaves in the KV memory is wrong.
  template <class Poison>
  void run_from_last(Slot& slot, const wire::PlanRow& row, Poison&& poison) {
    ++rows_run_;
    const std::uint32_t flags = row.flags & ~std::uint32_t{wire::kGated | wire::kAgain};
    const bool gated = (row.flags & wire::kGated) != 0, again = (row.flags & wire::kAgain) != 0;
    if (again) {
      const auto end = static_cast<std::size_t>(row.position + 1);
      if (row.tokens != 1 || row.position + 1 < slot.known || end > slot.tokens.size())
        return complain("nothing to sample again");
      slot.tokens.resize(end);  // equal: the row had no room
      slot.prefix.resize(end);
      slot.proposed.clear();
    }
    const auto size = static_cast<std::int32_t>(slot.tokens.size());
    const std::int32_t room = static_cast<std::int32_t>(slot.blocks.size()) * capacity_.block_tokens;
    if (flags != (wire::kSamples | wire::kFromLast)) return complain("other flags beside kFromLast");
    if (row.tokens < 1 || row.tokens > 1 + capacity_.max_drafts) return complain("so many are not drafted");
    if (slot.sent != slot.known || (size <= slot.known && !again))
      return complain("it has sampled nothing yet");
    if (row.position + row.tokens > room) return complain("a position without a block");
    if (row.position + row.tokens >= slot.max_tokens) return complain("beyond its last token");
    if (size >= slot.max_tokens || size > room) {
      rows_.push_back({slot.ref, static_cast<std::int32_t>(tokens_.size()), 0, wire::RowError::none, 0});
      return;
    }
    if (row.position < size - 1) return complain("it has more tokens than the plan allows for");
    const std::int32_t most = std::min({row.tokens - 1, slot.max_tokens - size - 1, room - size});
    const std::vector<TokenId> drafts = slot.drafts(last_step_, capacity_.vocab_size, most);
    const RowMasks* masks = gated ? masks_of(row) : nullptr;
    if (gated && masks->words.size() > static_cast<std::size_t>(row.tokens))
      return complain("too many masks");
    std::uint64_t prefix = slot.prefix.back();
    bool accepted = true;
    for (std::size_t i = 0; i <= drafts.size(); ++i) {
      const std::int32_t at = size - 1 + static_cast<std::int32_t>(i);
      if (users_[static_cast<std::size_t>(
              slot.blocks[static_cast<std::size_t>(at / capacity_.block_tokens)])] != 1)
        return complain("writes a block that another one holds");
      *cell(slot, at) = prefix;
      if (accepted) {
        for (std::int32_t p = 0; p <= at; ++p) {
          if (*cell(slot, p) != slot.prefix[static_cast<std::size_t>(p)])
            return complain("attends to position " + std::to_string(p) + " that was not written");
        }
        slot.run = at + 1;
        const std::vector<std::uint32_t>* mask = masks != nullptr ? &masks->words[i] : nullptr;
        if (i == 0) {
          sample(slot, poison(slot.key), mask);
          rows_.back().drafts = static_cast<std::int32_t>(drafts.size());
        } else {
          rows_.back().count += 1;
          const TokenId token = sampled(slot, mask);
          yield(slot, token);
          slot.append(token);
          accepted_behind_masks_ += masks != nullptr ? 1 : 0;
        }
        accepted = rows_.back().error == wire::RowError::none && i < drafts.size() &&
                   slot.tokens.back() == drafts[i] && (masks == nullptr || i + 1 < masks->words.size());
      }
      if (i < drafts.size()) prefix = extend(prefix, drafts[i], slot.media, at + 1);
    }
    propose(slot);
  }

  void score_prompt(const Slot& slot, std::int32_t begin, std::int32_t end) {
    if (slot.sampling.prompt_logprobs < 0) return;
    for (std::int32_t p = begin + 1; p <= end && p < slot.prompt_tokens; ++p) {
      scores_.push_back(
          {slot.ref, p, {slot.tokens[static_cast<std::size_t>(p)], -1.0f * static_cast<float>(p)}, {}});
    }
  }

  /// Behind the last position that has run, read from KV memory and not from the slot's own state. `mask`:
  /// null of a row that is not gated.
  TokenId sampled(const Slot& slot, const std::vector<std::uint32_t>* mask) {
    TokenId token = next_token(*cell(slot, slot.run - 1), slot.sampling.choice, capacity_.vocab_size);
    const auto allowed = [&] {
      return ((*mask)[static_cast<std::size_t>(token / 32)] >> token % 32 & 1) != 0;
    };
    while (mask != nullptr && !mask->empty() && !allowed()) token = (token + 1) % capacity_.vocab_size;
    return token;
  }

  void sample(Slot& slot, bool poisoned, const std::vector<std::uint32_t>* mask) {
    wire::ResultRow result{slot.ref, static_cast<std::int32_t>(tokens_.size()), 1, wire::RowError::none, 0};
    const TokenId token = sampled(slot, mask);
    if (poisoned) {
      result.error = wire::RowError::not_finite;
      result.count = 0;
      poisoned_.insert(slot.key);
    } else {
      yield(slot, token);
    }
    slot.append(token);
    rows_.push_back(result);
  }

  void yield(const Slot& slot, TokenId token) {
    tokens_.push_back(token);
    if (slot.sampling.logprobs < 0) return;
    const std::vector<wire::Logprob> top = {{token, -0.5f}, {0, -2.0f}};
    scores_.push_back(
        {slot.ref, static_cast<std::int32_t>(slot.tokens.size()), {token, -0.5f}, writer_.array(top)});
  }

  std::vector<std::byte> writer_out() {
    const std::span<const std::byte> record = writer_.finish();
    return {record.begin(), record.end()};
  }

  wire::Capacity capacity_;
  std::int32_t budget_;
  std::int64_t token_ns_ = 0;
  EncoderModel encoder_;
  std::uint32_t epoch_ = 0;
  std::uint64_t last_step_ = 0;
  std::set<std::uint64_t> commands_run_;
  std::deque<std::vector<std::byte>> plans_, commands_, done_;
  MaskStore masks_;
  std::map<std::uint32_t, Slot> slots_;
  std::map<std::uint32_t, std::uint32_t> generations_;
  std::vector<std::uint64_t> kv_, swap_;
  std::vector<std::int32_t> users_;  ///< per block: how many slots have it in their table
  std::string complaint_;
  std::int64_t rows_run_ = 0, forked_rows_ = 0, cached_tokens_ = 0, swapped_in_ = 0,
               accepted_behind_masks_ = 0;
  std::set<RequestKey> poisoned_;
  wire::RecordWriter<wire::StepResult> writer_;
  std::vector<wire::ResultRow> rows_;
  std::vector<TokenId> tokens_;
  std::vector<wire::TokenLogprobs> scores_;
};

}  // namespace troupe::test
