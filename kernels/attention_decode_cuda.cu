// Attention of rows that decode: the kernel and its launch. What its blocks do: cuda/attention/decode_block.cuh.
#include <algorithm>
#include <numbers>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/decode_block.cuh"
#include "kernels/cuda/launch.cuh"

namespace troupe::kernels::cuda {
namespace {

using namespace decode;

template <class Element, int kHeadDim>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    decode_attention_kernel(const DecodeArgs p) {
  using L = DecodeLayout<kHeadDim>;
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(memory);
  const int thread = int(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < L::kStages; ++i) {
      troupe::cuda::barrier_init(&shared.full[i], 1);
      troupe::cuda::barrier_init(&shared.empty[i], kConsumerThreads);
    }
    troupe::cuda::barrier_init(&shared.gathered, 1);
    troupe::cuda::fence_barrier_init();
  }
  // Columns beyond the group are computed and dropped; they stay zero.
  for (int i = thread; i < int(sizeof shared.q / 16); i += kThreads) {
    reinterpret_cast<uint4*>(shared.q)[i] = uint4{};
  }
  troupe::cuda::fence_proxy_async();
  __syncthreads();
  if (p.teams) troupe::cuda::stream::cluster_arrive();
  // Blocks that find no work end at once, and where they were there is room for two of the next kernel: it is
  // placed while all of these are there.
  troupe::cuda::let_next_start();
  if (p.teams) troupe::cuda::stream::cluster_wait();  // the others may be sent to
  if (thread >= kConsumerThreads) {
    const int lane = thread % 32;
    Producer<kHeadDim> produce(shared, p, lane);
    TeamItem item;
    if (p.teams && team_part(p.sequences, p.count, p.kv_heads, blockIdx.x, gridDim.x, lane, item, produce)) {
      produce.expect(item, int(blockIdx.x % kTeam));
    } else if (p.mode == DecodeRows::single) {
      for_each_share_part(p.sequences, p.count, p.kv_heads, blockIdx.x, gridDim.x, lane, produce);
    } else {
      for_each_whole_row(p.sequences, p.count, p.rows, p.kv_heads, blockIdx.x, gridDim.x, lane, produce);
    }
    produce.finish(item);
  } else {
    troupe::cuda::wait_for_previous();
    Consumer<Element, kHeadDim>(shared, p, thread).consume();
  }
}

template <class Element, int kHeadDim>
void launch_decode(Cuda& device, const DecodeArgs& parameters, int blocks) {
  constexpr std::size_t kBytes = sizeof(typename DecodeLayout<kHeadDim>::Shared);
  const auto kernel = decode_attention_kernel<Element, kHeadDim>;
  troupe::cuda::allow_shared(kernel, kBytes);
  troupe::cuda::launch(device, kernel,
                       {.grid = unsigned(blocks),
                        .block = kThreads,
                        .shared_bytes = kBytes,
                        .cluster = parameters.teams ? kTeam : 1,
                        .overlap = {.reads_settled = parameters.settled ? parameters.sequences : nullptr}},
                       parameters);
}

}  // namespace

bool decode_takes(const Cuda& device, const Attention& op) {
  return device.hopper() && size_of(op.kv.dtype) == 2 && (op.kv.head_dim == 64 || op.kv.head_dim == 128) &&
         op.heads / op.kv.kv_heads <= kGroup;
}

void run_decode_attention(Cuda& device, const Attention& op, DecodeRows rows) {
  const KvCache& kv = op.kv;
  const bool few = rows == DecodeRows::single && op.batch.count <= kFewSequences;
  const int multiprocessors = device.multiprocessors();
  const bool teams = few && multiprocessors >= kTeam;
  const int blocks =
      teams ? multiprocessors / kTeam * kTeam : (few ? 1 : kBlocksPerMultiprocessor) * multiprocessors;
  const std::size_t scratch = 2 * std::size_t(blocks) * partial_floats(kv.head_dim) * sizeof(float);
  const DecodeArgs parameters{.out = op.out,
                              .q = op.q,
                              .kv = static_cast<const std::byte*>(kv.data),
                              .block_bytes = kv.block_bytes(),
                              .key_offset = kv.key_offset(0, op.layer, 0),
                              .value_offset = kv.value_offset(0, op.layer, 0),
                              .sequences = op.batch.sequences,
                              .partials = static_cast<float*>(device.scratch(scratch)),
                              .counters = device.counters(),
                              .count = op.batch.count,
                              .rows = op.batch.rows,
                              .kv_heads = kv.kv_heads,
                              .group = op.heads / kv.kv_heads,
                              .row_elements = padded(op.heads * kv.head_dim),
                              .scale_log2 = op.scale * std::numbers::log2e_v<float>,
                              .mode = rows,
                              .teams = teams,
                              .settled = rows == DecodeRows::single && op.settled};
  const bool bf16 = kv.dtype == DType::bf16;
  if (kv.head_dim == 128) {
    bf16 ? launch_decode<Bf16, 128>(device, parameters, blocks)
         : launch_decode<F16, 128>(device, parameters, blocks);
  } else {
    bf16 ? launch_decode<Bf16, 64>(device, parameters, blocks)
         : launch_decode<F16, 64>(device, parameters, blocks);
  }
}

}  // namespace troupe::kernels::cuda
