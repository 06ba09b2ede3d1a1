// What the GPU derives of rows that begin at a sequence's last token, and what it accepts of their drafts.
//
// Looking up drafts reads every id of the sequence once, 256 consecutive bytes of a KV block at a time; a
// thread block does it for a sequence. All else is a handful of words for each sequence.
#include "kernels/cuda/launch.cuh"
#include "kernels/derived_rows.h"
#include "kernels/philox.h"

namespace troupe::kernels {
namespace {

constexpr int kLookupThreads = 512;
constexpr int kPlainThreads = 32;
constexpr int kAcceptThreads = 64;
static_assert(kPlainThreads > kMostDrafts && kLookupThreads >= kMostNgram);

// The ids of a sequence: those that have run lie in its KV blocks, the last one where sampling has left it,
// and what is guessed behind it in shared memory.
struct Ids {
  const BlockId* blocks;
  const TokenId* block_ids;
  std::int64_t ids_to_next_block;
  TokenId last;
  std::int32_t sampled;  // without the guesses
  std::int32_t known;
  const TokenId* guessed;

  __device__ TokenId operator[](std::int32_t i) const {
    if (i >= sampled) return guessed[i - sampled];
    if (i == sampled - 1) return last;
    return block_ids[blocks[i / kBlockTokens] * ids_to_next_block + i % kBlockTokens];
  }
};

// The largest of all threads' values, for all threads; 0 if none is larger.
__device__ std::uint64_t largest(std::uint64_t value) {
  __shared__ std::uint64_t found[kLookupThreads / 32];
  for (int step = 16; step > 0; step /= 2) {
    const std::uint64_t other = __shfl_xor_sync(~0u, value, step);
    value = other > value ? other : value;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = value;
  __syncthreads();
  for (const std::uint64_t other : found) value = other > value ? other : value;
  return value;
}

// Draft tokens by n-gram: of the places where the longest known n-gram ends, the latest. A draft that reaches
// the sequence's end goes on with what it has drafted. Returns how many, at most `most`.
__device__ int draft_by_ngram(const DraftSource& source, const Ids& ids, int most, TokenId* drafts) {
  __shared__ TokenId last[kMostNgram];  // last[c]: the c-th id from the end
  const auto thread = static_cast<int>(threadIdx.x);
  const int longest = min(source.longest_ngram, ids.known);
  if (thread < longest) last[thread] = ids[ids.known - 1 - thread];
  __syncthreads();
  std::uint64_t best = 0;  // length, then end
  for (int end = source.shortest_ngram + thread; end < ids.known; end += kLookupThreads) {
    int common = 0;
    while (common < longest && common < end && ids[end - 1 - common] == last[common]) ++common;
    if (common < source.shortest_ngram) continue;
    const std::uint64_t place = static_cast<std::uint64_t>(common) << 32 | static_cast<std::uint32_t>(end);
    best = place > best ? place : best;
  }
  best = largest(best);
  if (best == 0) return 0;
  const auto end = static_cast<std::int32_t>(best);
  if (thread < most) drafts[thread] = ids[end + thread % (ids.known - end)];
  return most;
}

// The index in the prediction of the next token, or -1. The answer follows the prediction while its last
// tokens are those before that index. Where they are not, its last kPredictionAnchor tokens are looked for,
// first behind what was followed last, then from the beginning.
__device__ std::int32_t next_predicted(const TokenId* prediction, const Ids& ids, std::int32_t outputs,
                                       SlotState& state) {
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int32_t count = state.prediction_count, left = state.prediction_left;
  const std::int32_t anchor = min(outputs, kPredictionAnchor);
  const auto stands_at = [&](std::int32_t place) {
    if (place < anchor || place > count) return false;
    for (int i = 1; i <= anchor; ++i) {
      if (prediction[place - i] != ids[ids.known - i]) return false;
    }
    return true;
  };
  std::int32_t next = outputs + state.prediction_shift;
  __syncthreads();  // all threads have read the state
  if (!stands_at(next)) {
    if (anchor < kPredictionAnchor) return -1;
    std::uint64_t best = 0;  // behind what was followed, then the earliest
    for (std::int32_t place = anchor + thread; place <= count; place += kLookupThreads) {
      if (!stands_at(place)) continue;
      const std::uint64_t rank = (place >= left + anchor ? std::uint64_t{1} << 32 : 0) |
                                 static_cast<std::uint32_t>(count - place + 1);
      best = rank > best ? rank : best;
    }
    best = largest(best);
    if (best == 0) return -1;
    next = count + 1 - static_cast<std::int32_t>(best);
  }
  if (thread == 0) state.prediction_shift = next - outputs, state.prediction_left = next;
  return next < count ? next : -1;
}

// Where a draft ends because of the ids that none may have.
__device__ int end_of(const DraftSource& source, const TokenId* drafts, int count) {
  for (int i = 0; i < count; ++i) {
    for (int n = 0; n < source.never_count; ++n) {
      if (drafts[i] == source.never[n]) return i;
    }
  }
  return count;
}

struct Drafted {
  int count = 0;
  bool predicted = false;
};

// Draft tokens of a slot behind `ids`, at most `most`, which is at least 1. The first `prompt_tokens` ids are
// the prompt. For all threads of a block of kLookupThreads.
__device__ Drafted draft(const DraftSource& source, SlotState& state, std::int32_t slot,
                         std::int32_t prompt_tokens, const Ids& ids, int most, TokenId* drafts) {
  const auto thread = static_cast<int>(threadIdx.x);
  Drafted made;
  if (source.predictions.tokens != nullptr && state.prediction_count > 0) {
    const TokenId* prediction =
        source.predictions.tokens + static_cast<std::int64_t>(slot) * source.predictions.per_slot;
    const std::int32_t next = next_predicted(prediction, ids, ids.known - prompt_tokens, state);
    if (next >= 0) {
      made = {min(most, state.prediction_count - next), true};
      if (thread < made.count) drafts[thread] = prediction[next + thread];
    }
  }
  if (made.count == 0 && source.drafted != nullptr && state.drafted_behind == ids.known) {
    made.count = min(most, state.drafted);
    if (thread < made.count) drafts[thread] = source.drafted[slot * kMostDrafts + thread];
  }
  __syncthreads();
  if (source.ngrams && !made.predicted && made.count < most) {
    Ids guessed = ids;
    guessed.known += made.count;
    made.count += draft_by_ngram(source, guessed, most - made.count, drafts + made.count);
    __syncthreads();
  }
  made.count = end_of(source, drafts, made.count);
  if (source.synthetic) {
    __syncthreads();  // all threads have read the drafts
    if (thread < most) drafts[thread] = ids.last;
    made.count = most;
    __syncthreads();
  }
  made.predicted = made.predicted && made.count > 0;
  return made;
}

__device__ Drafted take(const Proposal& proposal, int most, TokenId* drafts) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int count = min(most, proposal.count);
  if (thread < count) drafts[thread] = proposal.ids[thread];
  __syncthreads();
  return {count, proposal.predicted != 0 && count > 0};
}

// Where the sequence has come to the place from which its form forces tokens, and has sampled the first of
// them, it drafts the others, or what it has drafted itself if that begins with them.
__device__ Drafted draft_forced(const ProposingSequence& one, const Drafted& own, TokenId last, int yielded,
                                int most, TokenId* drafts) {
  if (one.forced_count == 0 || yielded != one.masks || one.forced[0] != last) return own;
  const int count = min(one.forced_count - 1, most);
  bool begins = own.count >= count;
  for (int i = 0; begins && i < count; ++i) begins = drafts[i] == one.forced[1 + i];
  if (begins) return own;
  __syncthreads();  // all threads have read the drafts
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < count) drafts[thread] = one.forced[1 + thread];
  __syncthreads();
  return {count, false};
}

__device__ void write_row(const DeriveRows& op, const DerivedSequence& derived, const BlockId* blocks, int t,
                          bool runs, TokenId token, std::int32_t position) {
  const int row = derived.row + t;
  const KvSlot place =
      runs ? KvSlot{blocks[position / kBlockTokens], position % kBlockTokens} : KvSlot{kPaddingBlock, 0};
  op.into.tokens[row] = runs ? token : 0;
  const std::int32_t stands_at = runs ? position + derived.position_shift : 0;
  op.into.positions[row] = stands_at;
  for (int axis = 0; op.positions != nullptr && axis < 3; ++axis) op.positions[3 * row + axis] = stands_at;
  op.into.slots[row] = place;
  if (runs) op.block_ids[place.block * op.ids_to_next_block + place.offset] = token;
  SampleRow& sample = op.into.samples[derived.sample + t];
  sample.logits_row = runs && derived.gated == 0 ? derived.sample + t : -1;
  const std::int32_t outputs = position + 1 - derived.prompt_tokens;
  sample.position = static_cast<std::uint32_t>(outputs);
  sample.known_tokens = runs ? position + 1 : 0;
  if (outputs >= derived.min_tokens) sample.banned_count = 0;
}

template <bool kDrafts>
__global__ void __launch_bounds__(kDrafts ? kLookupThreads : kPlainThreads)
    derive_rows_kernel(const __grid_constant__ DeriveRows op) {
  __shared__ TokenId drafts[kMostDrafts];
  cuda::wait_for_previous();
  cuda::let_next_start();
  const DerivedSequence derived = op.derived[blockIdx.x];
  if (derived.rows == 0) return;
  const auto thread = static_cast<int>(threadIdx.x);
  const bool padding = derived.slot < 0;
  const BlockId* blocks =
      padding ? nullptr : op.blocks + static_cast<std::size_t>(derived.slot) * op.blocks_per_slot;
  const std::int32_t known = padding ? 0 : op.states[derived.slot].known;
  const bool idle = padding || known >= derived.max_tokens || known > derived.room;
  Drafted made;
  TokenId last = 0;
  if (!idle) {
    last = op.sampled[derived.slot];
    if constexpr (kDrafts) {
      const int most = min(derived.drafts, min(derived.max_tokens - known - 1, derived.room - known));
      const Ids ids{blocks, op.block_ids, op.ids_to_next_block, last, known, known, drafts};
      if (most > 0) {
        made = derived.proposes != 0 ? take(op.proposals[derived.slot], most, drafts)
                                     : draft(op.source, op.states[derived.slot], derived.slot,
                                             derived.prompt_tokens, ids, most, drafts);
      }
    }
  }
  if (thread < derived.rows) {
    const bool runs = !idle && thread <= made.count;
    write_row(op, derived, blocks, thread, runs, thread == 0 ? last : drafts[runs ? thread - 1 : 0],
              runs ? known - 1 + thread : 0);
  }
  if (thread == 0) {
    op.into.sequences[derived.sequence] = {.blocks = blocks,
                                           .position = idle ? 0 : known - 1,
                                           .tokens = idle ? 0 : 1 + made.count,
                                           .row = derived.row};
    op.predicted[blockIdx.x] = made.predicted ? 1 : 0;
  }
}

__global__ void __launch_bounds__(kAcceptThreads)
    accept_drafts_kernel(const __grid_constant__ AcceptDrafts op) {
  cuda::wait_for_previous();
  cuda::let_next_start();
  const auto i = static_cast<int>(blockIdx.x * kAcceptThreads + threadIdx.x);
  if (i >= op.count || (op.held != nullptr && *op.held != 0)) return;
  const DerivedSequence derived = op.derived[i];
  if (derived.rows == 0 || derived.slot < 0) return;
  const std::int32_t rows = op.arrays.sequences[derived.sequence].tokens;
  if (rows == 0) {
    op.yields[i] = {};
    return;
  }
  SlotState& state = op.states[derived.slot];
  SampleResult* results = op.results + derived.sample;
  const SampleRow* samples = op.arrays.samples + derived.sample;
  const TokenId* tokens = op.arrays.tokens + derived.row;
  const auto accepts = [&](int draft) {
    if (op.acceptance == 0) return results[draft].token == tokens[draft + 1];
    const bool heads = sample_bits(static_cast<std::uint64_t>(derived.slot), 1,
                                   static_cast<std::uint32_t>(state.known + draft)) < op.acceptance;
    if (heads) results[draft].token = tokens[draft + 1];
    return heads;
  };
  int yielded = 1;
  while (yielded < rows && samples[yielded].logits_row >= 0 && results[yielded].error == SampleError::none &&
         accepts(yielded - 1)) {
    ++yielded;
  }
  op.sampled[derived.slot] = results[yielded - 1].token;
  op.yields[i] = {yielded, static_cast<std::int16_t>(rows - 1), static_cast<std::int16_t>(op.predicted[i])};
  state.known += yielded;
}

__global__ void __launch_bounds__(kLookupThreads)
    propose_drafts_kernel(const __grid_constant__ ProposeDrafts op) {
  __shared__ TokenId drafts[kMostDrafts];
  cuda::wait_for_previous();
  cuda::let_next_start();
  const ProposingSequence& one = op.sequences[blockIdx.x];
  if (one.slot < 0) return;
  const int yielded = one.derived >= 0 ? op.yields[one.derived].tokens : 1;
  if (yielded == 0) return;
  const std::int32_t known =
      one.derived >= 0 ? op.states[one.slot].known : op.samples[one.sample].known_tokens + 1;
  const bool failed = op.results[one.sample].error != SampleError::none;
  const int most = failed ? 0 : min(min(one.most, kMostDrafts), one.max_tokens - known - 1);
  Drafted made;
  if (most > 0) {
    const TokenId last = op.sampled[one.slot];
    const Ids ids{op.blocks + static_cast<std::size_t>(one.slot) * op.blocks_per_slot,
                  op.block_ids,
                  op.ids_to_next_block,
                  last,
                  known,
                  known,
                  drafts};
    made = draft(op.source, op.states[one.slot], one.slot, one.prompt_tokens, ids, most, drafts);
    made = draft_forced(one, made, last, yielded, most, drafts);
  }
  const auto thread = static_cast<int>(threadIdx.x);
  Proposal& proposal = op.proposals[one.slot];
  if (thread < made.count) proposal.ids[thread] = drafts[thread];
  if (thread == 0) {
    proposal.count = made.count;
    proposal.predicted = made.predicted ? 1 : 0;
  }
}

}  // namespace

void run(Cuda& device, const DeriveRows& op) {
  const auto shape = [&](int threads) {
    return troupe::cuda::Shape{.grid = dim3(static_cast<unsigned>(op.count)),
                               .block = dim3(static_cast<unsigned>(threads)),
                               .overlap = {.writes_settled = op.into.sequences}};
  };
  if (op.drafts)
    cuda::launch(device, derive_rows_kernel<true>, shape(kLookupThreads), op);
  else
    cuda::launch(device, derive_rows_kernel<false>, shape(kPlainThreads), op);
}

void run(Cuda& device, const AcceptDrafts& op) {
  const auto blocks = static_cast<unsigned>((op.count + kAcceptThreads - 1) / kAcceptThreads);
  cuda::launch(device, accept_drafts_kernel, {.grid = dim3(blocks), .block = dim3(kAcceptThreads)}, op);
}

void run(Cuda& device, const ProposeDrafts& op) {
  cuda::launch(device, propose_drafts_kernel,
               {.grid = dim3(static_cast<unsigned>(op.count)), .block = dim3(kLookupThreads)}, op);
}

}  // namespace troupe::kernels
