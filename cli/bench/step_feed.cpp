#include "cli/bench/step_feed.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/clock.h"

namespace troupe::bench {
namespace {

constexpr int kDistinctPrompts = 8;
constexpr std::size_t kStartsInPlan = 512;  // with their ids and blocks no more than a record holds
constexpr std::size_t kIdsInPlan = wire::kMaxTokensInPlan / 2;
constexpr int kSwaps = 4;
constexpr auto kPatience = std::chrono::seconds(60);

double seconds(std::int64_t from_ns, std::int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) * 1e-9;
}

std::int32_t blocks_for(std::int64_t tokens, std::int32_t block_tokens) {
  return static_cast<std::int32_t>((tokens + block_tokens - 1) / block_tokens);
}

}  // namespace

TokenId StepFeed::random_id() {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<TokenId>((random_ >> 33) % static_cast<std::uint64_t>(capacity_.vocab_size));
}

Status StepFeed::meet_ranks() {
  const TimePoint deadline = Clock::now() + kPatience;
  for (;;) {
    const Result<bool> met = executor_.prepare();
    if (!met.ok() || *met) return met.status();
    if (Clock::now() > deadline) return failure(Code::timeout, "a rank has not come for 60 s");
  }
}

void StepFeed::begin() {
  plan_.begin(1);
  ended_.clear();
  started_.clear();
  tokens_.clear();
  blocks_.clear();
  rows_.clear();
}

void StepFeed::end_all() {
  for (const FedSequence& sequence : sequences_) ended_.push_back(sequence.slot);
  sequences_.clear();
}

void StepFeed::start(std::int32_t slot, BlockId first_block, std::int32_t blocks,
                     const std::vector<TokenId>& ids) {
  const SlotRef ref{static_cast<std::uint32_t>(slot), ++generation_};
  wire::StartSequence start;
  start.slot = ref;
  start.prompt_tokens = start.known_tokens = static_cast<std::int32_t>(ids.size());
  start.sampling.seed = generation_;
  if (capacity_.max_drafts > 0) start.max_tokens = blocks * capacity_.block_tokens;
  started_.push_back(start);
  tokens_.push_back({ref, 0, 0, plan_.array(ids)});
  std::vector<BlockId> table;
  for (std::int32_t b = 0; b < blocks; ++b) table.push_back(first_block + b);
  blocks_.push_back({ref, 0, 0, plan_.array(table)});
  sequences_.push_back({ref, 0, first_block, blocks});
}

Status StepFeed::submit(std::span<const std::byte> record) {
  wire::RecordView view;
  TROUPE_CHECK(wire::RecordView::open(record, view));
  Status status = executor_.submit(view);
  if (status.ok()) ++pending_;
  return status;
}

Status StepFeed::finish_plan() {
  const auto ended = plan_.array(ended_);
  const auto started = plan_.array(started_);
  const auto tokens = plan_.array(tokens_);
  const auto blocks = plan_.array(blocks_);
  const auto rows = plan_.array(rows_);
  wire::StepPlan& record = plan_.record();
  record.step = ++step_;
  record.after_cache_command = last_copy_;
  record.finished = ended;
  record.started = started;
  record.tokens = tokens;
  record.blocks = blocks;
  record.rows = rows;
  return submit(plan_.finish());
}

Status StepFeed::await() {
  const TimePoint deadline = Clock::now() + kPatience;
  wire::RecordView view;
  for (;;) {
    const Result<bool> got = executor_.poll(out_, Clock::now());
    if (!got.ok()) return got.status();
    if (*got) {
      TROUPE_CHECK(wire::RecordView::open(out_, view));
      const auto* done = view.as<wire::CacheDone>();
      if (done == nullptr || !take_swap(*done)) break;
      if (pending_ == 0) return {};
      if (Status status = start_swaps(); !status.ok()) return status;
    }
    if (Clock::now() > deadline) return failure(Code::timeout, "the device has not answered for 60 s");
  }
  --pending_;
  if (const auto* done = view.as<wire::CacheDone>(); done != nullptr && done->failed != 0) {
    return failure(Code::internal, "blocks could not be copied");
  }
  if (const auto* result = view.as<wire::StepResult>()) {
    spans_.push_back({result->started_ns, result->finished_ns});
    for (const wire::ResultRow& row : view.array(result->rows)) {
      if (row.error == wire::RowError::none) {
        count_row(row);
        continue;
      }
      return failure(Code::internal, row.error == wire::RowError::not_finite
                                         ? "the model's logits are not finite"
                                         : "the executor does not know a sequence of its own");
    }
  }
  return {};
}

Status StepFeed::drain(int left) {
  while (pending_ > left) {
    if (Status status = await(); !status.ok()) return status;
  }
  return {};
}

Status StepFeed::run_prompt(std::size_t sequence, int tokens, bool samples) {
  FedSequence& s = sequences_[sequence];
  while (s.position < tokens) {
    const std::int32_t count = std::min(tokens - s.position, capacity_.max_tokens_per_step);
    const bool last = s.position + count == tokens;
    rows_.push_back({s.slot, s.position, count, last && samples ? wire::kSamples : 0u, 0});
    s.position += count;
    if (Status status = finish_plan(); !status.ok()) return status;
    if (Status status = drain(1); !status.ok()) return status;
    begin();
  }
  return drain(0);
}

Status StepFeed::swap_beside(std::int32_t blocks) {
  std::int32_t used = 0;
  for (const FedSequence& s : sequences_) used = std::max(used, s.first_block + s.blocks);
  if (used + kSwaps * blocks > capacity_.kv_blocks || kSwaps * blocks > capacity_.swap_blocks) {
    return invalid(std::to_string(kSwaps * blocks) + " blocks to swap are not there beside the sequences' " +
                   std::to_string(used) + " of " + std::to_string(capacity_.kv_blocks) +
                   "; the swap space has " + std::to_string(capacity_.swap_blocks));
  }
  beside_ = blocks;
  while (blocks == 0 && !swaps_.empty()) {
    if (Status status = await(); !status.ok()) return status;
  }
  return {};
}

/// Each of the four commands has blocks of its own, in the KV memory and in the swap space.
Status StepFeed::start_swaps() {
  for (int which = 0; beside_ > 0 && which < kSwaps; ++which) {
    const auto same = [which](const auto& swap) { return swap.second == which; };
    if (std::any_of(swaps_.begin(), swaps_.end(), same)) continue;
    const bool out = which % 2 == 0;
    std::vector<wire::BlockCopy> copies;
    for (std::int32_t b = 0; b < beside_; ++b) {
      const BlockId swap = which * beside_ + b, kv = capacity_.kv_blocks - 1 - swap;
      copies.push_back(out ? wire::BlockCopy{kv, swap} : wire::BlockCopy{swap, kv});
    }
    wire::RecordWriter<wire::CacheCommand> command;
    command.begin(1);
    const auto span = command.array(copies);
    command.record().id = ++command_;
    command.record().op = out ? wire::CacheOp::swap_out : wire::CacheOp::swap_in;
    command.record().copies = span;
    wire::RecordView view;
    TROUPE_CHECK(wire::RecordView::open(command.finish(), view));
    if (Status status = executor_.submit(view); !status.ok()) return status;
    swaps_.emplace_back(command_, which);
  }
  return {};
}

/// True when it was the end of one of start_swaps()'s commands.
bool StepFeed::take_swap(const wire::CacheDone& done) {
  const auto at =
      std::find_if(swaps_.begin(), swaps_.end(), [&](const auto& swap) { return swap.first == done.id; });
  if (at == swaps_.end()) return false;
  swaps_.erase(at);
  swapped_ += beside_;
  return true;
}

Status StepFeed::copy_blocks(const std::vector<wire::BlockCopy>& copies) {
  constexpr std::size_t kAtOnce = 4096;
  wire::RecordWriter<wire::CacheCommand> command;
  for (std::size_t at = 0; at < copies.size(); at += kAtOnce) {
    command.begin(1);
    const auto span = command.array(std::span(copies).subspan(at, std::min(kAtOnce, copies.size() - at)));
    command.record().id = last_copy_ = ++command_;
    command.record().copies = span;
    if (Status status = submit(command.finish()); !status.ok()) return status;
    if (Status status = drain(0); !status.ok()) return status;
  }
  return {};
}

Status StepFeed::check_fit(int batch, std::int64_t tokens) const {
  const std::int64_t longest =
      std::min<std::int64_t>(capacity_.max_model_len, static_cast<std::int64_t>(wire::kMaxTokensInPlan));
  const std::int64_t blocks = std::int64_t{batch} * blocks_for(tokens, capacity_.block_tokens);
  if (batch <= capacity_.max_slots && tokens <= longest && blocks <= capacity_.kv_blocks) return {};
  return invalid("a batch of " + std::to_string(batch) + " with " + std::to_string(tokens) +
                 " tokens each does not fit: there is room for " + std::to_string(capacity_.max_slots) +
                 " sequences of at most " + std::to_string(longest) + " tokens and " +
                 std::to_string(std::int64_t{capacity_.kv_blocks} * capacity_.block_tokens) +
                 " tokens in all");
}

std::vector<TokenId> StepFeed::random_ids(int count) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i) ids.push_back(random_id());
  return ids;
}

Result<double> StepFeed::prefill(int tokens) {
  if (Status status = check_fit(1, tokens); !status.ok()) return status;
  begin();
  end_all();
  start(0, 0, blocks_for(tokens, capacity_.block_tokens), random_ids(tokens));
  const std::int64_t from = now_ns();
  if (Status status = run_prompt(0, tokens, true); !status.ok()) return status;
  return seconds(from, now_ns());
}

Status StepFeed::place(int batch, int context, int output) {
  const std::int64_t room = std::int64_t{context} + 1 + output;
  if (Status status = check_fit(batch, room); !status.ok()) return status;
  const std::int32_t each = blocks_for(room, capacity_.block_tokens);
  std::vector<std::vector<TokenId>> prompts(static_cast<std::size_t>(std::min(batch, kDistinctPrompts)));
  for (auto& prompt : prompts) prompt = random_ids(context);
  if (Status status = run_prompts(prompts, each); !status.ok()) return status;
  if (Status status = copy_prompts(prompts.size(), batch, context, each); !status.ok()) return status;
  return start_batch(prompts, batch, each);
}

/// Leaves the blocks of each prompt written, and no sequence.
Status StepFeed::run_prompts(const std::vector<std::vector<TokenId>>& prompts, std::int32_t each) {
  begin();
  end_all();
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    if (prompts[p].empty()) continue;
    start(static_cast<std::int32_t>(p), static_cast<BlockId>(p) * each, each, prompts[p]);
    const auto tokens = static_cast<int>(prompts[p].size());
    if (Status status = run_prompt(sequences_.size() - 1, tokens, false); !status.ok()) return status;
  }
  end_all();
  if (ended_.empty()) return {};
  if (Status status = finish_plan(); !status.ok()) return status;
  return drain(0);
}

Status StepFeed::copy_prompts(std::size_t prompts, int batch, int context, std::int32_t each) {
  std::vector<wire::BlockCopy> copies;
  for (int i = static_cast<int>(prompts); i < batch; ++i) {
    const BlockId from = i % static_cast<int>(prompts) * each;
    for (std::int32_t b = 0; b < blocks_for(context, capacity_.block_tokens); ++b) {
      copies.push_back({from + b, i * each + b});
    }
  }
  return copy_blocks(copies);
}

/// Sequences whose prompts are one token longer than what has run.
Status StepFeed::start_batch(const std::vector<std::vector<TokenId>>& prompts, int batch, std::int32_t each) {
  begin();
  std::size_t ids_in_plan = 0;
  for (int i = 0; i < batch; ++i) {
    std::vector<TokenId> ids = prompts[static_cast<std::size_t>(i) % prompts.size()];
    const auto context = static_cast<std::int32_t>(ids.size());
    ids.push_back(random_id());
    const std::size_t more = ids.size() + static_cast<std::size_t>(each);
    if (!started_.empty() && (ids_in_plan + more > kIdsInPlan || started_.size() == kStartsInPlan)) {
      if (Status status = finish_plan(); !status.ok()) return status;
      if (Status status = drain(0); !status.ok()) return status;
      begin();
      ids_in_plan = 0;
    }
    ids_in_plan += more;
    start(i, i * each, each, ids);
    sequences_.back().position = context;
  }
  if (Status status = finish_plan(); !status.ok()) return status;
  return drain(0);
}

/// The masks of all rows of a step, in as few records as hold them.
Status StepFeed::send_masks(std::uint64_t step) {
  if (mask_.empty()) {
    mask_.resize((static_cast<std::size_t>(capacity_.vocab_size) + 31) / 32);
    for (std::uint32_t& word : mask_) word = static_cast<std::uint32_t>(random_id()) * 2654435761u;
    mask_[0] |= 1;
  }
  const std::int64_t until =
      now_ns() + static_cast<std::int64_t>(1e9 * row_mask_s_ * static_cast<double>(sequences_.size()));
  while (now_ns() < until) {
  }
  const std::size_t each = mask_.size() * sizeof mask_[0] + sizeof(wire::RowMask) + 2 * wire::kAlignment;
  const std::size_t at_once =
      std::max<std::size_t>(1, (wire::kMaxRecordBytes - sizeof(wire::StepMasks)) / each);
  for (std::size_t at = 0; at < sequences_.size(); at += at_once) {
    masks_.begin(1);
    row_masks_.clear();
    for (std::size_t i = at; i < std::min(at + at_once, sequences_.size()); ++i) {
      row_masks_.push_back({sequences_[i].slot, wire::MaskForm::bits, masks_.array(mask_)});
    }
    const auto rows = masks_.array(row_masks_);
    masks_.record().step = step;
    masks_.record().rows = rows;
    wire::RecordView view;
    TROUPE_CHECK(wire::RecordView::open(masks_.finish(), view));
    if (Status status = executor_.submit(view); !status.ok()) return status;
  }
  return {};
}

void StepFeed::add_rows(int drafts, bool drafting) {
  const bool gated = row_mask_s_ >= 0;
  const std::uint32_t flags = gated ? wire::kSamples | wire::kGated : std::uint32_t{wire::kSamples};
  for (FedSequence& s : sequences_) {
    if (drafting) {
      rows_.push_back({s.slot, s.position + s.in_flight, 1 + drafts, wire::kSamples | wire::kFromLast, 0});
      s.in_flight += 1 + drafts;
    } else {
      rows_.push_back({s.slot, s.position++, 1, flags, 0});
    }
  }
}

void StepFeed::count_row(const wire::ResultRow& row) {
  yielded_ += row.count;
  drafted_ += row.drafts;
  if (rows_in_flight_ == 0) return;
  FedSequence& s = sequences_[row.slot.slot];
  s.position += row.count;
  s.in_flight -= rows_in_flight_;
}

Result<std::vector<double>> StepFeed::decode(int steps, int drafts, bool drafting) {
  rows_in_flight_ = drafting ? 1 + drafts : 0;
  std::vector<double> times;
  submit_s_.clear();
  spans_.clear();
  std::int64_t last = 0;
  int sent = 0;
  if (Status status = start_swaps(); !status.ok()) return status;
  const bool gated = row_mask_s_ >= 0;
  const std::uint64_t first = step_ + 1;
  for (int done = 0; done < steps; ++done) {
    while (sent < steps && pending_ < 2) {
      begin();
      add_rows(drafts, drafting);
      const std::int64_t from = now_ns();
      if (Status status = finish_plan(); !status.ok()) return status;
      submit_s_.push_back(seconds(from, now_ns()));
      ++sent;
    }
    if (gated) {
      if (Status status = send_masks(first + static_cast<std::uint64_t>(done)); !status.ok()) return status;
    }
    if (Status status = await(); !status.ok()) return status;
    const std::int64_t now = now_ns();
    if (done > 0)
      times.push_back(seconds(last, now));
    else
      yielded_ = drafted_ = 0;
    last = now;
  }
  return times;
}

}  // namespace troupe::bench
