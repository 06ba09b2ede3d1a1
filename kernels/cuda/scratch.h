#pragma once
// Working memory of the ops on a GPU: what each asks of Cuda::scratch().
//
// Pure functions of an op's shapes and of the GPU; pointers are only compared with null. run() of an op asks
// for exactly this and lays out its memory by the same code, so what a step may ask for at most is known
// before any step runs: model/cuda/step_scratch.h.
#include <cstddef>

#include "kernels/add_rms_norm.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention/choose.h"
#include "kernels/cuda/gpu_traits.h"
#include "kernels/cuda/moe/layout.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/sample/choose.h"
#include "kernels/dense_tail.h"
#include "kernels/draft_rows.h"
#include "kernels/embed.h"
#include "kernels/linear_bias.h"
#include "kernels/lm_head.h"
#include "kernels/moe_tail.h"
#include "kernels/place_rows.h"
#include "kernels/rope_table.h"
#include "kernels/sample.h"

namespace troupe::kernels::cuda {

AttentionShape shape_of(const Attention& op);

std::size_t scratch_bytes(const Attention& op, const GpuTraits& gpu);
std::size_t scratch_bytes(const Linear& linear, const GpuTraits& gpu);
std::size_t scratch_bytes(const DenseTail& op, const GpuTraits& gpu);
std::size_t scratch_bytes(const MoeTail& op, const GpuTraits& gpu);
std::size_t scratch_bytes(const LinearAdd& op, const GpuTraits& gpu);
std::size_t scratch_bytes(const LmHead& op, const GpuTraits& gpu);
std::size_t scratch_bytes(const Mlp& op, const GpuTraits& gpu);
std::size_t scratch_bytes(const QkvRopeKvWrite& op, const GpuTraits& gpu);

/// Rows of a LinearBias whose sums fit kBiasedSums, at least 1: those of a product that does not end in its
/// bias go to working memory.
inline constexpr std::size_t kBiasedSums = std::size_t{32} << 20;
int biased_rows_at_once(const LinearBias& op);
std::size_t scratch_bytes(const LinearBias& op, const GpuTraits& gpu);

inline std::size_t scratch_bytes(const Moe& op, const GpuTraits& gpu) {
  return op.rows == 0 ? 0 : lay_out(op, gpu, nullptr).bytes;
}
constexpr std::size_t scratch_bytes(const Sample& op, const GpuTraits& gpu) {
  return working_bytes(SampleShape{.rows = op.count, .vocab = op.vocab}, gpu);
}

// These work in registers and shared memory alone.
constexpr std::size_t scratch_bytes(const AddRmsNorm&, const GpuTraits&) { return 0; }
constexpr std::size_t scratch_bytes(const CopyRows&, const GpuTraits&) { return 0; }
constexpr std::size_t scratch_bytes(const DraftInput&, const GpuTraits&) { return 0; }
constexpr std::size_t scratch_bytes(const Embed&, const GpuTraits&) { return 0; }
constexpr std::size_t scratch_bytes(const PlaceRows&, const GpuTraits&) { return 0; }
constexpr std::size_t scratch_bytes(const RoundRows&, const GpuTraits&) { return 0; }
constexpr std::size_t scratch_bytes(const RopeTable&, const GpuTraits&) { return 0; }
constexpr std::size_t scratch_bytes(const Score&, const GpuTraits&) { return 0; }

}  // namespace troupe::kernels::cuda
