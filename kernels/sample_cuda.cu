// Sampling on the GPU: one kernel, one team of blocks per row, the row read once and kept in shared memory.
//
// A row of 103,424 logits is 404 KiB: eight blocks of a cluster hold it, four such blocks a multiprocessor.
// What a row does not ask for costs it a comparison. Where there are no clusters, or a row is too long,
// the slices lie in scratch memory instead and the code is the same.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sample/filter.cuh"
#include "kernels/cuda/sample/logits.cuh"
#include "kernels/cuda/sample/team.cuh"
#include "kernels/philox.h"
#include "kernels/sample.h"

namespace troupe::kernels {
namespace cuda {
namespace {

// Few rows: many threads for each. Many rows: four blocks fit a multiprocessor, of 256 threads each.
constexpr int kThreads = 256;
constexpr int kManyThreads = 512;
constexpr int kFewRows = 8;

/// What a block keeps beside its slice; dynamic shared memory is this much and then, if Resident, the slice.
template <bool Resident>
constexpr std::size_t table_bytes(int slice) {
  const std::size_t bins = kBins * sizeof(Bin<Resident>);
  const std::size_t bits = static_cast<std::size_t>(slice + 31) / 32 * 4;
  return (std::max({bins, bits, sizeof(TopMemory)}) + 15) / 16 * 16;
}

/// The logits of a step's row and this block's part of them.
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
  float* working;  // rows of `length` × team_size() elements, unless Resident
  int vocab;
  int stride;
  int length;  // of a slice, a multiple of 4
  int tables;  // bytes
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
  Mail mail(team.box);
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
  slice.bring_in();
  const SampleRow& row = team.row;
  SampleResult& result = args.results[index];

  unsigned long long best = peak(slice, team, mail, 0);
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
    normalise(slice, team, mail, logit_of(best));
    const int wanted = min(min(row.logprobs, args.vocab), kMaxTopLogprobs);
    if (wanted > 0) top_logits(slice, team, mail, *reinterpret_cast<TopMemory*>(shared), wanted, result.top);
    __syncthreads();
  }
  if (processes(row)) {
    process(slice, row, reinterpret_cast<std::uint32_t*>(shared));
    best = peak(slice, team, mail, 1);
  }
  if (row.temperature <= 0 || row.top_k == 1) {
    // The block of the token knows what became of its logit.
    const int token = id_of(best);
    if (token / args.length == static_cast<int>(team_rank()) && threadIdx.x == 0)
      finish(token, SampleError::none);
    return;
  }
  const KeptWeights kept =
      filter(slice, reinterpret_cast<Bin<Resident>*>(shared), team, mail, logit_of(best), args.vocab);
  mail.leave();
  draw(slice, team, mail, kept, sample_bits(row.seed, row.choice, row.position),
       [&](TokenId token) { finish(token, SampleError::none); });
  mail.left();
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
  Mail mail(team.box);
  const unsigned index = blockIdx.y;
  const ScoreRow row = args.rows[index];
  // Nothing below writes to these logits: without a copy the slice is read where it lies.
  float* const logits = const_cast<float*>(args.logits) +
                        static_cast<std::size_t>(row.logits_row) * static_cast<std::size_t>(args.stride);
  const auto slice = slice_of<Resident, Threads>(logits, shared, static_cast<std::size_t>(args.tables),
                                                 logits, args.length, args.vocab);
  if constexpr (Resident) slice.bring_in();
  SampleResult& result = args.results[index];
  const unsigned long long best = peak(slice, team, mail, 0);
  const bool finite = best != kNotFinite;
  const int wanted = min(min(row.logprobs, args.vocab), kMaxTopLogprobs);
  if (finite) normalise(slice, team, mail, logit_of(best));
  if (team_rank() == 0 && threadIdx.x == 0) {
    result.token = row.token;
    result.error = finite ? SampleError::none : SampleError::not_finite;
    result.top_count = finite ? wanted : 0;
    if (finite) result.logprob = logits[row.token] - team.normaliser;
  }
  if (finite && wanted > 0)
    top_logits(slice, team, mail, *reinterpret_cast<TopMemory*>(shared), wanted, result.top);
}

/// How an op's rows are shared out.
struct SampleLaunch {
  bool resident = false;
  bool few = false;
  int length = 0;
  int tables = 0;
  std::size_t working_bytes = 0;
  troupe::cuda::Shape shape;
};

SampleLaunch plan_for(const Cuda& device, int count, int vocab) {
  const int team = device.hopper() ? kTeamBlocks : 1;
  SampleLaunch plan;
  plan.length = (vocab + 4 * team - 1) / (4 * team) * 4;
  plan.resident = team > 1 && plan.length <= kMaxResident;
  plan.few = count <= kFewRows || !plan.resident;
  const std::size_t slice = sizeof(float) * static_cast<std::size_t>(plan.length);
  const std::size_t tables = plan.resident ? table_bytes<true>(plan.length) : table_bytes<false>(plan.length);
  plan.tables = static_cast<int>(tables);
  plan.working_bytes = plan.resident ? 0 : slice * static_cast<std::size_t>(team * count);
  plan.shape = {.grid = dim3(static_cast<unsigned>(team), static_cast<unsigned>(count)),
                .block = dim3(plan.few ? kManyThreads : kThreads),
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
  const cuda::SampleArgs args{
      .results = op.results,
      .rows = op.rows,
      .logits = op.logits,
      .working = plan.resident ? nullptr : static_cast<float*>(device.scratch(plan.working_bytes)),
      .vocab = op.vocab,
      .stride = op.stride,
      .length = plan.length,
      .tables = plan.tables};
  cuda::launch_planned(device,
                       !plan.resident ? cuda::sample_kernel<false, cuda::kManyThreads>
                       : plan.few     ? cuda::sample_kernel<true, cuda::kManyThreads>
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
                       !plan.resident ? cuda::score_kernel<false, cuda::kManyThreads>
                       : plan.few     ? cuda::score_kernel<true, cuda::kManyThreads>
                                      : cuda::score_kernel<true, cuda::kThreads>,
                       plan, args);
}

}  // namespace troupe::kernels
