// What the runs of the draft layer read: a handful of words for each row and sequence.
#include "kernels/cuda/launch.cuh"
#include "kernels/derived_drafts.h"

namespace troupe::kernels {
namespace {

constexpr int kRowThreads = 128;
constexpr int kTakeThreads = 64;

// Where a sequence stands behind the step. Of an idle one, and of padding, all is 0.
struct Behind {
  std::int32_t position = 0;  // of its first row
  std::int32_t accepted = 0;  // rows
  std::int32_t sample = -1;   // that gave its last token; -1: the token is not known
  bool fresh = false;         // nothing of it has run before
  bool lacks = false;         // the draft layer's KV slot `position` is not filled
};

__device__ Behind find_behind(const DeriveDrafts& op, const DraftingSequence& one, const SequenceRows& ran) {
  Behind found;
  if (one.slot < 0 || ran.tokens == 0) return found;
  found.position = ran.position;
  found.accepted = one.derived >= 0 ? op.yields[one.derived].tokens : ran.tokens;
  if (one.sample >= 0) found.sample = one.sample + (one.derived >= 0 ? found.accepted - 1 : 0);
  const std::int32_t filled = op.states[one.slot].draft_slots;
  found.fresh = filled == 0;
  // Behind cached blocks the last of them has the hidden row. One that begins within a block has been forked,
  // and has the slot.
  found.lacks =
      found.position > 0 && (found.fresh ? found.position % kBlockTokens == 0 : filled == found.position);
  return found;
}

__device__ KvSlot slot_at(const BlockId* blocks, std::int32_t position) {
  return {blocks[position / kBlockTokens], position % kBlockTokens};
}

// Turns the sample of a token into the one of the token behind it.
__device__ void step_on(SampleRow& sample, std::int32_t min_tokens) {
  ++sample.position;
  ++sample.known_tokens;
  if (static_cast<std::int32_t>(sample.position) >= min_tokens) sample.banned_count = 0;
}

__global__ void __launch_bounds__(kRowThreads) derive_drafts_kernel(const __grid_constant__ DeriveDrafts op) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const auto s = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const DraftingSequence one = op.drafting[s];
  const SequenceRows ran = op.step.sequences[s];
  const int end = s + 1 < op.count ? op.step.sequences[s + 1].row : op.rows;
  const Behind behind = find_behind(op, one, ran);
  const int accepted = behind.accepted, lacks = behind.lacks ? 1 : 0;
  const std::int32_t last = behind.position + accepted;  // where the last token stands, if it is known
  const bool fills_last = behind.sample >= 0 && last < one.room && lacks + accepted <= end - ran.row;
  const int count = accepted == 0 ? 0 : lacks + accepted - (fills_last ? 0 : 1);
  for (int r = thread; ran.row + r < end; r += kRowThreads) {
    const int row = ran.row + r, of = r - lacks;  // the hidden row is that of the sequence's row `of`
    const bool runs = r < count;
    const std::int32_t position = behind.position + of + 1;
    TokenId token = 0;
    if (runs) token = of + 1 < accepted ? op.step.tokens[ran.row + of + 1] : op.sampled[one.slot];
    op.into.tokens[row] = token;
    op.into.positions[row] = runs ? position : 0;
    op.into.from[row] = !runs ? row : of < 0 ? -1 - one.slot : ran.row + of;
    op.into.slots[row] = runs ? slot_at(ran.blocks, position) : KvSlot{kPaddingBlock, 0};
    const std::int32_t ran_at = behind.position + r;
    const bool ends_block = r < accepted && ran_at % kBlockTokens == kBlockTokens - 1;
    op.into.fill_to[row] = ends_block ? ran.blocks[ran_at / kBlockTokens] : -1;
    op.into.fill_from[row] = row;
  }
  __syncthreads();  // all threads have read the state
  if (thread != 0) return;

  std::int32_t drafts = 0;
  if (fills_last) {
    // A row may verify as many (DeriveRows). The layer fills a KV slot for each but the last, from `last` on.
    drafts = max(0, min(min(one.drafts, op.most_drafts), min(one.max_tokens - last - 2, one.room - last)));
  }
  op.into.sequences[s] = {
      .blocks = ran.blocks, .position = behind.position + 1 - lacks, .tokens = count, .row = ran.row};
  op.into.picks[s] = ran.row + max(0, count - 1);
  op.into.ends[s] = {
      .blocks = ran.blocks, .position = fills_last ? last : 0, .tokens = fills_last ? 1 : 0, .row = s};
  SampleRow sample{.logits_row = -1};
  if (drafts > 0) {
    sample = op.step.samples[behind.sample];
    step_on(sample, one.min_tokens);
    sample.logits_row = s;
    sample.mask = nullptr;
    sample.logprobs = -1;
    sample.next = nullptr;
    const KvSlot place = slot_at(ran.blocks, last);
    op.block_ids[place.block * op.ids_to_next_block + place.offset] = op.sampled[one.slot];
  }
  op.into.samples[s] = sample;
  const bool carries = behind.fresh && behind.lacks;
  op.into.carry_to[s] = carries ? one.slot : -1;
  op.into.carry_from[s] = carries ? ran.blocks[behind.position / kBlockTokens - 1] : 0;
  op.into.keep_to[s] = accepted > 0 && !fills_last ? one.slot : -1;
  op.into.keep_from[s] = ran.row + max(0, accepted - 1);
  op.drafting[s].drafts = drafts;
  op.drafting[s].known = last + 1;
  if (accepted == 0) return;
  SlotState& state = op.states[one.slot];
  state.draft_slots = last + (fills_last ? 1 : 0);
  state.drafted = 0;
  state.drafted_behind = last + 1;
}

__global__ void __launch_bounds__(kTakeThreads) take_drafts_kernel(const __grid_constant__ TakeDrafts op) {
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const auto s = static_cast<int>(blockIdx.x * kTakeThreads + threadIdx.x);
  if (s >= op.count) return;
  const DraftingSequence one = op.drafting[s];
  bool drafts = one.drafts >= op.made;
  TokenId token = 0;
  if (drafts && op.results[s].error != SampleError::none) {
    op.drafting[s].drafts = op.made - 1;
    drafts = false;
  }
  if (drafts) {
    token = op.results[s].token;
    op.drafted[one.slot * kMostDrafts + op.made - 1] = token;
    op.states[one.slot].drafted = op.made;
  }
  if (!op.again) return;
  const bool goes_on = drafts && one.drafts > op.made;
  const std::int32_t position = goes_on ? one.known - 1 + op.made : 0;
  const BlockId* blocks = op.into.sequences[s].blocks;
  const KvSlot place = goes_on ? slot_at(blocks, position) : KvSlot{kPaddingBlock, 0};
  if (!goes_on) token = 0;
  op.into.tokens[s] = token;
  op.into.positions[s] = position;
  op.into.from[s] = s;
  op.into.slots[s] = place;
  op.into.sequences[s] = {.blocks = blocks, .position = position, .tokens = goes_on ? 1 : 0, .row = s};
  SampleRow& sample = op.into.samples[s];
  if (goes_on) {
    step_on(sample, one.min_tokens);
    op.block_ids[place.block * op.ids_to_next_block + place.offset] = token;
  } else {
    sample.logits_row = -1;
  }
}

}  // namespace

void run(Cuda& device, const DeriveDrafts& op) {
  troupe::cuda::launch(device, derive_drafts_kernel,
                       {.grid = dim3(static_cast<unsigned>(op.count)), .block = dim3(kRowThreads)}, op);
}

void run(Cuda& device, const TakeDrafts& op) {
  const auto blocks = static_cast<unsigned>((op.count + kTakeThreads - 1) / kTakeThreads);
  troupe::cuda::launch(device, take_drafts_kernel, {.grid = dim3(blocks), .block = dim3(kTakeThreads)}, op);
}

}  // namespace troupe::kernels
