// Checks of the vision tower's ops.
#include "kernels/check/side.h"
#include "kernels/check/weights.h"
#include "kernels/cuda/attention/frame.h"
#include "kernels/frame_attention.h"
#include "kernels/join_rows.h"
#include "kernels/layer_norm.h"
#include "kernels/linear_bias.h"
#include "kernels/normalise_patches.h"

namespace troupe::kernels::check {
namespace {

void add_rows_of_patches(Checks& checks) {
  checks.push_back(
      {"NormalisePatches", "bfloat16, 5 patches", {}, one_kernel, on_both(kExact, [](auto& side) {
         constexpr int kRows = 5;
         std::vector<float> table(kPixelTable);
         fill_pixel_table(table.data());
         std::vector<std::uint8_t> patches(kRows * kPatchBytes);
         for (std::size_t i = 0; i < patches.size(); ++i) patches[i] = static_cast<std::uint8_t>(i * 7);
         void* const out = side.rows(DType::bf16, kRows, kPatchBytes);
         run(side.device(),
             NormalisePatches{
                 .out = out, .patches = side.put(patches), .table = side.put(table), .rows = kRows});
         return side.numbers(DType::bf16, out, kRows, kPatchBytes);
       })});
  for (const DType dtype : {DType::bf16, DType::f32}) {
    checks.push_back({"LayerNorm",
                      std::string(to_string(dtype)) + ", 9 × 1280",
                      {},
                      one_kernel,
                      on_both(Bound{rounded_once(dtype).relative, 1e-4}, [dtype](auto& side) {
                        constexpr int kRows = 9, kCols = 1280;
                        void* const out = side.rows(dtype, kRows, kCols);
                        run(side.device(),
                            LayerNorm{.out = out,
                                      .x = side.floats(kRows, kCols, draw(kRows * kCols, 121, 3)),
                                      .weight = side.floats(1, kCols, draw(kCols, 122)),
                                      .bias = side.floats(1, kCols, draw(kCols, 123)),
                                      .dtype = dtype,
                                      .rows = kRows,
                                      .cols = kCols,
                                      .eps = 1e-6f});
                        return side.numbers(dtype, out, kRows, kCols);
                      })});
  }
  checks.push_back({"JoinRows", "bfloat16, four rows as one", {}, one_kernel, on_both(kExact, [](auto& side) {
                      void* const out = side.rows(DType::bf16, 3, 4 * 83);
                      run(side.device(), JoinRows{.out = out,
                                                  .x = side.rows(DType::bf16, 12, 83, draw(12 * 83, 124)),
                                                  .rows = 3,
                                                  .cols = 83,
                                                  .parts = 4,
                                                  .step = 4,
                                                  .stride = 1});
                      return side.numbers(DType::bf16, out, 3, 4 * 83);
                    })});
}

/// `rows` × 1280; with 1,700 rows, tiles for every multiprocessor of the cards without wgmma.
void add_biased_product(Checks& checks, DType dtype, int rows, BiasEnding ending, const char* what) {
  constexpr int kOutputs = 1280;
  const int inputs = rows > 1000 ? 200 : 1000;
  const bool summed = ending == BiasEnding::set || ending == BiasEnding::add;
  const cuda::LinearShape shape{
      .ending = ending == BiasEnding::add ? cuda::Ending::add : cuda::Ending::store_f32,
      .format = dtype,
      .outputs = kOutputs,
      .inputs = inputs,
      .rows = rows};
  checks.push_back(
      {"LinearBias",
       to_string(shape) + ", " + what,
       {},
       way_of_product(shape),
       on_both(Bound{summed ? 0 : rounded_once(dtype).relative, sums(dtype).of_largest}, [=](auto& side) {
         void* const out = side.rows(dtype, rows, kOutputs);
         float* const sum = side.floats(rows, kOutputs, draw(static_cast<std::size_t>(rows * kOutputs), 125));
         run(side.device(), LinearBias{.out = out,
                                       .sum = sum,
                                       .x = exact_rows(side, dtype, rows, inputs, 126),
                                       .weight = exact_matrix(side, dtype, kOutputs, inputs, 127),
                                       .bias = side.floats(1, kOutputs, draw(kOutputs, 128)),
                                       .rows = rows,
                                       .ending = ending});
         return summed ? side.numbers(DType::f32, sum, rows, kOutputs)
                       : side.numbers(dtype, out, rows, kOutputs);
       })});
}

void add_frame(Checks& checks, DType dtype, int heads, int head_dim, int rows) {
  FrameAttention shape{.dtype = dtype,
                       .rows = rows,
                       .heads = heads,
                       .head_dim = head_dim,
                       .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                       .count = rows};
  const auto way = [shape](const cuda::GpuTraits& gpu) -> TakenWay {
    switch (choose(shape, gpu)) {
      case cuda::FrameWay::wgmma: return {"packed, wgmma", KernelWay::frame_packed};
      case cuda::FrameWay::mma: return {"packed, mma.sync", KernelWay::frame_packed};
      case cuda::FrameWay::plain: break;
    }
    return {"plain", {}};
  };
  const auto body = [=](auto& side) {
    FrameAttention op = shape;
    std::vector<float> rope;
    for (int i = 0; i < rows * head_dim / 2; ++i) {
      rope.push_back(std::cos(static_cast<float>(i)));
      rope.push_back(std::sin(static_cast<float>(i)));
    }
    const int width = heads * head_dim;
    void* const qkv =
        side.rows(dtype, rows, 3 * width, draw(static_cast<std::size_t>(rows * 3 * width), 129));
    void* packed = qkv;
    if (!packs_in_place(side.device(), op))
      packed = side.template room<std::byte>(packed_bytes(side.device(), op));
    run(side.device(), PackFrame{.packed = packed,
                                 .qkv = qkv,
                                 .rope = side.put(rope),
                                 .dtype = dtype,
                                 .rows = rows,
                                 .heads = heads,
                                 .head_dim = head_dim,
                                 .count = rows});
    op.packed = packed;
    op.out = side.rows(dtype, rows, width);
    run(side.device(), op);
    return side.numbers(dtype, op.out, rows, width);
  };
  const std::string what = std::string(to_string(dtype)) + ", " + std::to_string(rows) + " patches, " +
                           std::to_string(heads) + " heads of " + std::to_string(head_dim);
  const Bound bound{0, dtype == DType::bf16 ? 1.2e-2 : dtype == DType::f16 ? 1.5e-3 : 1e-4};
  checks.push_back({"PackFrame, FrameAttention", what, {}, way, on_both(bound, body)});
}

}  // namespace

void add_vision_checks(Checks& checks) {
  add_rows_of_patches(checks);
  add_biased_product(checks, DType::bf16, 1700, BiasEnding::gelu, "GELU");
  add_biased_product(checks, DType::f16, 1700, BiasEnding::add, "added");
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const int rows : {5, 200}) {
      if (dtype == DType::f32 && rows > 5) continue;
      add_biased_product(checks, dtype, rows, BiasEnding::store, "stored");
      add_biased_product(checks, dtype, rows, BiasEnding::quick_gelu, "QuickGELU");
      add_biased_product(checks, dtype, rows, BiasEnding::gelu, "GELU");
      add_biased_product(checks, dtype, rows, BiasEnding::add, "added");
    }
  }
  add_frame(checks, DType::bf16, 4, 80, 200);
  add_frame(checks, DType::f16, 4, 80, 200);
  add_frame(checks, DType::f32, 2, 40, 70);
}

}  // namespace troupe::kernels::check
