// A build without CUDA compiles the tests' CUDA cases too. They are skipped before they call an op; these
// definitions satisfy the linker.
#include "base/check.h"
#include "kernels/add_rms_norm.h"
#include "kernels/attention.h"
#include "kernels/copy_blocks.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/dense_tail.h"
#include "kernels/draft_rows.h"
#include "kernels/embed.h"
#include "kernels/fill_random.h"
#include "kernels/frame_attention.h"
#include "kernels/join_rows.h"
#include "kernels/layer_norm.h"
#include "kernels/linear_add.h"
#include "kernels/linear_bias.h"
#include "kernels/lm_head.h"
#include "kernels/mlp.h"
#include "kernels/moe.h"
#include "kernels/moe_tail.h"
#include "kernels/normalise_patches.h"
#include "kernels/pack.h"
#include "kernels/place_rows.h"
#include "kernels/qkv_rope_kv_write.h"
#include "kernels/quantise_rows.h"
#include "kernels/rope_table.h"
#include "kernels/sample.h"
#include "kernels/step_inputs.h"
#include "kernels/top_logprobs.h"

namespace troupe::kernels {

void run(Cuda&, const AddRmsNorm&) { TROUPE_CHECK(false); }
void run(Cuda&, const Attention&) { TROUPE_CHECK(false); }
void run(Cuda&, const CollectOutcome&) { TROUPE_CHECK(false); }
void run(Cuda&, const CopyBlocks&) { TROUPE_CHECK(false); }
void run(Cuda&, const CopyRows&) { TROUPE_CHECK(false); }
void run(Cuda&, const DenseTail&) { TROUPE_CHECK(false); }
void run(Cuda&, const DraftInput&) { TROUPE_CHECK(false); }
void run(Cuda&, const Embed&) { TROUPE_CHECK(false); }
void run(Cuda&, const FillRandom&) { TROUPE_CHECK(false); }
void run(Cuda&, const FrameAttention&) { TROUPE_CHECK(false); }
void run(Cuda&, const JoinRows&) { TROUPE_CHECK(false); }
void run(Cuda&, const LayerNorm&) { TROUPE_CHECK(false); }
void run(Cuda&, const LinearAdd&) { TROUPE_CHECK(false); }
void run(Cuda&, const LinearBias&) { TROUPE_CHECK(false); }
void run(Cuda&, const LmHead&) { TROUPE_CHECK(false); }
void run(Cuda&, const Mlp&) { TROUPE_CHECK(false); }
void run(Cuda&, const Moe&) { TROUPE_CHECK(false); }
void run(Cuda&, const MoeTail&) { TROUPE_CHECK(false); }
void run(Cuda&, const NormalisePatches&) { TROUPE_CHECK(false); }
void run(Cuda&, const OpenGates&) { TROUPE_CHECK(false); }
void run(Cuda&, const Pack&) { TROUPE_CHECK(false); }
void run(Cuda&, const PackFrame&) { TROUPE_CHECK(false); }
void run(Cuda&, const PlaceRows&) { TROUPE_CHECK(false); }
void run(Cuda&, const QkvRopeKvWrite&) { TROUPE_CHECK(false); }
void run(Cuda&, const QuantiseRows&) { TROUPE_CHECK(false); }
void run(Cuda&, const RoundRows&) { TROUPE_CHECK(false); }
void run(Cuda&, const RopeTable&) { TROUPE_CHECK(false); }
void run(Cuda&, const Sample&) { TROUPE_CHECK(false); }
void run(Cuda&, const Score&) { TROUPE_CHECK(false); }
void run(Cuda&, const StepInputs&) { TROUPE_CHECK(false); }
void run(Cuda&, const TopLogprobs&) { TROUPE_CHECK(false); }

std::size_t packed_bytes(const Cuda&, const FrameAttention&) { return 0; }
bool packs_in_place(const Cuda&, const FrameAttention&) { return true; }
MemoryLines keys_and_values(const Cuda&, const FrameAttention&, int, int) { return {}; }

namespace cuda {
void run(Cuda&, const Linear&) { TROUPE_CHECK(false); }
void run_generic(Cuda&, const Linear&) { TROUPE_CHECK(false); }
void run_generic_attention(Cuda&, const Attention&, DecodeRows) { TROUPE_CHECK(false); }
void run_unpacked(Cuda&, const Linear&) { TROUPE_CHECK(false); }
void run_expanded(Cuda&, const Linear&, int) { TROUPE_CHECK(false); }
void run_stream(Cuda&, const Linear&, const StreamPlan&) { TROUPE_CHECK(false); }
void run_wgmma(Cuda&, const Linear&, int) { TROUPE_CHECK(false); }
}  // namespace cuda

}  // namespace troupe::kernels
