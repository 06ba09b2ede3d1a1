// Sampling: one kernel, with a team of blocks per row of logits. The row is read once and kept in shared
// memory.
//
// A row of 103,424 logits is 404 KiB: the eight blocks of a cluster hold it, and four such blocks fit on a
// multiprocessor. An option that a row does not use costs one comparison. Without clusters, or if a row is
// too long, the slices are in scratch memory instead; the code is the same.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sample/filter.cuh"
#include "kernels/cuda/sample/logits.cuh"
#include "kernels/cuda/sample/team.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/philox.h"
#include "kernels/sample.h"

namespace troupe::kernels {
namespace cuda {
namespace {

constexpr int kThreads = kSampleThreads;
constexpr int kThreadsForFewRows = kSampleManyThreads;
static_assert(kTeamBlocks == kSampleCluster && kMaxResident == kSampleMaxResident);

/// Bytes of tables and scratch in dynamic shared memory; the slice follows if Resident.
template <bool Resident>
constexpr std::size_t table_bytes(int slice) {
  const std::size_t bins = kBins * sizeof(Bin<Resident>);
  const std::size_t bits = static_cast<std::size_t>(slice + 31) / 32 * 4;
  return (std::max({bins, bits, sizeof(TopMemory)}) + 15) / 16 * 16;
}

/// This block's slice of a row.
template <bool Resident, int Threads>
__device__ LogitSlice<Resident, Threads> slice_of(float* row, std::byte* shared, std::size_t tables,
                                                  float* working, int length, int vocab) {
  LogitSlice<Resident, Threads> slice;
  slice.begin = min(static_cast<int>(team_rank()) * length, vocab);
  slice.count = min(length, vocab - slice.begin);
  slice.row = row + slice.begin;
  if constexpr (Resident) {
    slice.data = reinterpret_cast<float*>(shared + tables);
  } else {
    slice.data = working + slice.begin;
    slice.vectors = reinterpret_cast<std::uint64_t>(slice.data) % 16 == 0;
  }
  return slice;
}

struct SampleArgs {
  SampleResult* results;
  const SampleRow* rows;
  float* logits;
  float* working;  // unless Resident: `length` × team_size() elements per row
  int vocab;
  int stride;
  int length;  // elements of a slice, a multiple of 4
  int tables;  // table_bytes()
};

template <bool Resident, int Threads>
__global__ void __launch_bounds__(Threads, 1024 / Threads) sample_kernel(const SampleArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ __align__(16) std::byte team_bytes[sizeof(TeamMemory<Resident>)];
  auto& team = *reinterpret_cast<TeamMemory<Resident>*>(team_bytes);
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  const unsigned index = blockIdx.y;
  const SampleRow& asked = args.rows[index];
  const int logits_row = asked.logits_row;
  if (logits_row < 0) return;
  Exchange exchange(team.barriers);
  float* const logits =
      args.logits + static_cast<std::size_t>(logits_row) * static_cast<std::size_t>(args.stride);
  float* const working = args.working + std::size_t{index} * team_size() * static_cast<unsigned>(args.length);
  const auto slice = slice_of<Resident, Threads>(logits, shared, static_cast<std::size_t>(args.tables),
                                                 working, args.length, args.vocab);
  static_assert(sizeof(SampleRow) % 8 == 0);
  if (threadIdx.x < sizeof(SampleRow) / 8) {
    reinterpret_cast<std::uint64_t*>(&team.row)[threadIdx.x] =
        reinterpret_cast<const std::uint64_t*>(&asked)[threadIdx.x];
  }
  slice.load();
  const SampleRow& row = team.row;
  SampleResult& result = args.results[index];

  unsigned long long best = find_largest(slice, team, exchange, 0);
  const auto finish = [&](TokenId token, SampleError error) {
    result.token = token;
    result.error = error;
    const bool scored = error == SampleError::none && row.logprobs >= 0;
    result.top_count = scored ? min(min(row.logprobs, args.vocab), kMaxTopLogprobs) : 0;
    if (scored) result.logprob = logits[token] - team.normaliser;
    if (row.next != nullptr) *row.next = token;
  };
  if (best == kNotFinite) {
    if (team_rank() == 0 && threadIdx.x == 0) finish(0, SampleError::not_finite);
    return;
  }
  if (row.logprobs >= 0) {
    normalise(slice, team, exchange, logit_of(best));
    const int wanted = min(min(row.logprobs, args.vocab), kMaxTopLogprobs);
    if (wanted > 0)
      top_logits(slice, team, exchange, *reinterpret_cast<TopMemory*>(shared), wanted, result.top);
    __syncthreads();
  }
  if (has_processors(row)) process(slice, row, reinterpret_cast<std::uint32_t*>(shared));
  if (row.mask != nullptr) apply_mask(slice, row.mask);
  if (has_processors(row) || row.mask != nullptr) best = find_largest(slice, team, exchange, 1);
  if (row.temperature <= 0 || row.top_k == 1) {
    // The block whose slice contains the token writes the result.
    const int token = id_of(best);
    if (token / args.length == static_cast<int>(team_rank()) && threadIdx.x == 0)
      finish(token, SampleError::none);
    return;
  }
  const KeptWeights kept =
      filter(slice, reinterpret_cast<Bin<Resident>*>(shared), team, exchange, logit_of(best), args.vocab);
  exchange.announce_exit();
  draw(slice, team, exchange, kept, sample_bits(row.seed, row.choice, row.position),
       [&](TokenId token) { finish(token, SampleError::none); });
  exchange.wait_for_exit();
}

struct ScoreArgs {
  SampleResult* results;
  const ScoreRow* rows;
  const float* logits;
  int vocab;
  int stride;
  int length;
  int tables;
};

template <bool Resident, int Threads>
__global__ void __launch_bounds__(Threads, 1024 / Threads) score_kernel(const ScoreArgs args) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ __align__(16) std::byte team_bytes[sizeof(TeamMemory<Resident>)];
  auto& team = *reinterpret_cast<TeamMemory<Resident>*>(team_bytes);
  troupe::cuda::wait_for_previous();
  troupe::cuda::let_next_start();
  Exchange exchange(team.barriers);
  const unsigned index = blockIdx.y;
  const ScoreRow row = args.rows[index];
  // Nothing below writes to these logits: unless Resident, the slice is the op's array itself.
  float* const logits = const_cast<float*>(args.logits) +
                        static_cast<std::size_t>(row.logits_row) * static_cast<std::size_t>(args.stride);
  const auto slice = slice_of<Resident, Threads>(logits, shared, static_cast<std::size_t>(args.tables),
                                                 logits, args.length, args.vocab);
  if constexpr (Resident) slice.load();
  SampleResult& result = args.results[index];
  const unsigned long long best = find_largest(slice, team, exchange, 0);
  const bool finite = best != kNotFinite;
  const int wanted = min(min(row.logprobs, args.vocab), kMaxTopLogprobs);
  if (finite) normalise(slice, team, exchange, logit_of(best));
  if (team_rank() == 0 && threadIdx.x == 0) {
    result.token = row.token;
    result.error = finite ? SampleError::none : SampleError::not_finite;
    result.top_count = finite ? wanted : 0;
    if (finite) result.logprob = logits[row.token] - team.normaliser;
  }
  if (finite && wanted > 0)
    top_logits(slice, team, exchange, *reinterpret_cast<TopMemory*>(shared), wanted, result.top);
}

/// How a launch divides the rows among blocks.
struct SampleLaunch {
  bool resident = false;
  bool few_rows = false;
  int length = 0;
  int tables = 0;
  troupe::cuda::Shape shape;
};

SampleLaunch plan_for(const Cuda& device, int count, int vocab) {
  const SampleChoice choice = choose(SampleShape{.rows = count, .vocab = vocab}, traits_of(device));
  const int team = choice.blocks;
  SampleLaunch plan{.resident = choice.resident,
                    .few_rows = choice.threads == kThreadsForFewRows,
                    .length = choice.block_logits};
  const std::size_t slice = sizeof(float) * static_cast<std::size_t>(plan.length);
  const std::size_t tables = plan.resident ? table_bytes<true>(plan.length) : table_bytes<false>(plan.length);
  plan.tables = static_cast<int>(tables);
  plan.shape = {.grid = dim3(static_cast<unsigned>(team), static_cast<unsigned>(count)),
                .block = dim3(static_cast<unsigned>(choice.threads)),
                .shared_bytes = tables + (plan.resident ? slice : 0),
                .cluster = team};
  TROUPE_CHECK(plan.shape.shared_bytes <= 96 * 1024 && count <= 65535);
  return plan;
}

template <class... Parameters, class... Arguments>
void launch_planned(Cuda& device, void (*kernel)(Parameters...), const SampleLaunch& plan,
                    const Arguments&... arguments) {
  troupe::cuda::allow_shared(kernel, plan.shape.shared_bytes);
  troupe::cuda::launch(device, kernel, plan.shape, arguments...);
}

}  // namespace
}  // namespace cuda

void run(Cuda& device, const Sample& op) {
  if (op.count == 0) return;
  const cuda::SampleLaunch plan = cuda::plan_for(device, op.count, op.vocab);
  auto* const working = static_cast<float*>(device.scratch(cuda::scratch_bytes(op, cuda::traits_of(device))));
  const cuda::SampleArgs args{.results = op.results,
                              .rows = op.rows,
                              .logits = op.logits,
                              .working = plan.resident ? nullptr : working,
                              .vocab = op.vocab,
                              .stride = op.stride,
                              .length = plan.length,
                              .tables = plan.tables};
  cuda::launch_planned(device,
                       !plan.resident  ? cuda::sample_kernel<false, cuda::kThreadsForFewRows>
                       : plan.few_rows ? cuda::sample_kernel<true, cuda::kThreadsForFewRows>
                                       : cuda::sample_kernel<true, cuda::kThreads>,
                       plan, args);
}

void run(Cuda& device, const Score& op) {
  if (op.count == 0) return;
  const cuda::SampleLaunch plan = cuda::plan_for(device, op.count, op.vocab);
  const cuda::ScoreArgs args{.results = op.results,
                             .rows = op.rows,
                             .logits = op.logits,
                             .vocab = op.vocab,
                             .stride = op.stride,
                             .length = plan.length,
                             .tables = plan.tables};
  cuda::launch_planned(device,
                       !plan.resident  ? cuda::score_kernel<false, cuda::kThreadsForFewRows>
                       : plan.few_rows ? cuda::score_kernel<true, cuda::kThreadsForFewRows>
                                       : cuda::score_kernel<true, cuda::kThreads>,
                       plan, args);
}

}  // namespace troupe::kernels
