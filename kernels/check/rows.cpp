// Checks of ops on single rows, of packing, and of copies.
#include "kernels/add_rms_norm.h"
#include "kernels/check/side.h"
#include "kernels/copy_blocks.h"
#include "kernels/e4m3.h"
#include "kernels/embed.h"
#include "kernels/place_rows.h"
#include "kernels/quantise_rows.h"
#include "kernels/rope_table.h"

namespace troupe::kernels::check {
namespace {

constexpr int kTableVocab = 300, kTableHidden = 1000, kTokenRows = 37;

/// Every row of a table, in some order, and a token that it does not have.
template <class S>
Numbers embedded(S& side, const Matrix& table) {
  std::vector<TokenId> tokens;
  for (int r = 0; r < table.outputs; ++r) tokens.push_back(r * 7 % table.outputs);
  tokens.push_back(table.outputs);
  const int rows = static_cast<int>(tokens.size());
  float* const out = side.floats(rows, table.inputs);
  run(side.device(), Embed{.out = out, .tokens = side.put(tokens), .table = table, .rows = rows});
  return side.numbers(DType::f32, out, rows, table.inputs);
}

void add_tables(Checks& checks) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const std::string type = to_string(dtype);
    checks.push_back(
        {"Embed", type + ", " + std::to_string(kTableVocab) + " × " + std::to_string(kTableHidden), "Pack",
         one_kernel, on_both(kExact, [dtype](auto& side) {
           return embedded(
               side, side.packed(dtype, kTableVocab, kTableHidden, draw(kTableVocab * kTableHidden, 1)));
         })});
  }
}

void add_packing(Checks& checks) {
  for (const bool transposed : {false, true}) {
    checks.push_back({"Pack",
                      transposed ? "bfloat16, transposed" : "bfloat16, three parts",
                      {},
                      one_kernel,
                      on_both(kExact, [transposed](auto& side) {
                        const Matrix matrix = side.matrix(DType::bf16, 119, 70);
                        int first = 0;
                        for (const int outputs : {40, 9, 70}) {
                          const Numbers values = draw(static_cast<std::size_t>(outputs * 70), 2);
                          run(side.device(), Pack{.into = matrix,
                                                  .source = values.data(),
                                                  .source_dtype = DType::f32,
                                                  .transposed = transposed,
                                                  .first = first,
                                                  .outputs = outputs});
                          side.device().sync();
                          first += outputs;
                        }
                        return embedded(side, matrix);
                      })});
  }
  checks.push_back(
      {"FillRandom", "bfloat16, dummy weights", "Pack", one_kernel, on_both(kExact, [](auto& side) {
         const Matrix matrix = side.matrix(DType::bf16, 200, 96);
         run(side.device(), FillRandom{.into = matrix, .outputs = 200, .seed = 5});
         return embedded(side, matrix);
       })});
}

/// Codes and scales by the text of quantise_rows.h.
Status check_quantise_rows(Cpu&, Cuda& cuda) {
  constexpr int kRows = 5, kCols = 300;
  const Numbers values = draw(kRows * kCols, 11, 3);
  Side<Cuda> side(cuda);
  QuantiseRows op{.x = side.rows(DType::bf16, kRows, kCols, values), .rows = kRows, .cols = kCols};
  auto* const memory = side.room<std::byte>(coded_bytes(kRows, kCols));
  lay_out(op, memory);
  run(cuda, op);
  const auto codes = side.get(op.codes, static_cast<std::size_t>(kRows * coded_stride(kCols)));
  const auto scales = side.get(op.scales, static_cast<std::size_t>(kRows * coded_blocks(kCols)));
  std::vector<std::uint8_t> expected_codes(codes.size());
  std::vector<float> expected_scales;
  for (int r = 0; r < kRows; ++r) {
    for (int b = 0; b < coded_blocks(kCols); ++b) {
      const int begin = b * kFp8Block, end = std::min(kCols, begin + kFp8Block);
      float largest = 0;
      for (int c = begin; c < end; ++c)
        largest = std::max(largest, std::abs(values[static_cast<std::size_t>(r * kCols + c)]));
      const float scale = largest / 448;
      expected_scales.push_back(scale);
      for (int c = begin; c < end; ++c)
        expected_codes[static_cast<std::size_t>(r * coded_stride(kCols) + c)] =
            float_to_e4m3(values[static_cast<std::size_t>(r * kCols + c)] / scale);
    }
  }
  if (Status s = compare_bytes(scales, expected_scales); !s.ok()) return s;
  return compare_bytes(codes, expected_codes);
}

void add_norms(Checks& checks) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    checks.push_back({"AddRmsNorm",
                      std::string(to_string(dtype)) + ", added and picked rows",
                      {},
                      one_kernel,
                      on_both(rounded_between(dtype), [dtype](auto& side) {
                        float* const residual =
                            side.floats(kTokenRows, kTableHidden, draw(kTokenRows * kTableHidden, 21, 3));
                        const float* const weight = side.floats(1, kTableHidden, draw(kTableHidden, 22));
                        void* const out = side.rows(dtype, kTokenRows, kTableHidden);
                        AddRmsNorm op{
                            .out = out,
                            .residual = residual,
                            .add = side.floats(kTokenRows, kTableHidden, draw(kTokenRows * kTableHidden, 23)),
                            .weight = weight,
                            .dtype = dtype,
                            .rows = kTokenRows,
                            .cols = kTableHidden};
                        run(side.device(), op);
                        Numbers all = side.numbers(dtype, out, kTokenRows, kTableHidden);
                        op.add = nullptr;
                        op.pick = side.put(std::vector<std::int32_t>{36, 0, 5});
                        op.rows = 3;
                        run(side.device(), op);
                        const Numbers picked = side.numbers(dtype, out, 3, kTableHidden);
                        all.insert(all.end(), picked.begin(), picked.end());
                        return all;
                      })});
  }
}

void add_positions(Checks& checks) {
  for (const int axes : {1, 3}) {
    checks.push_back({"RopeTable",
                      axes == 1 ? "one axis" : "three axes",
                      {},
                      one_kernel,
                      on_both(Bound{0, 1e-6}, [axes](auto& side) {
                        constexpr int kRows = 20, kDim = 128;
                        std::vector<float> frequencies(kDim / 2);
                        rope_inverse_frequencies(frequencies.data(), kDim, 500000);
                        std::vector<std::int32_t> positions;
                        std::vector<std::uint8_t> axis;
                        for (int i = 0; i < kRows * axes; ++i) positions.push_back(i * i * 37 % 30000);
                        for (int i = 0; i < kDim / 2; ++i)
                          axis.push_back(static_cast<std::uint8_t>(i % axes));
                        float* const out = side.template room<float>(kRows * kDim);
                        run(side.device(), RopeTable{.out = out,
                                                     .positions = side.put(positions),
                                                     .inverse_frequencies = side.put(frequencies),
                                                     .axis = axes == 1 ? nullptr : side.put(axis),
                                                     .axes = axes,
                                                     .rows = kRows,
                                                     .head_dim = kDim});
                        return side.get(out, kRows * kDim);
                      })});
  }
}

void add_copies(Checks& checks) {
  checks.push_back({"CopyBlocks", "two blocks of two layers", {}, one_kernel, on_both(kExact, [](auto& side) {
                      KvCache kv{.layers = 2, .kv_heads = 2, .head_dim = 64};
                      const std::size_t words = 5 * kv.block_bytes() / sizeof(float);
                      float* const memory = side.put(draw(words, 31));
                      kv.data = memory;
                      const BlockPair pairs[] = {{0, 3}, {4, 1}};
                      run(side.device(), CopyBlocks{.kv = kv, .pairs = pairs, .count = 2});
                      return side.get(memory, words);
                    })});
  for (const DType dtype : {DType::bf16, DType::f32}) {
    checks.push_back({"PlaceRows", to_string(dtype), {}, one_kernel, on_both(kExact, [dtype](auto& side) {
                        float* const out = side.floats(9, 83);
                        run(side.device(), PlaceRows{.out = out,
                                                     .rows = side.rows(dtype, 9, 83, draw(9 * 83, 41)),
                                                     .dtype = dtype,
                                                     .count = 9,
                                                     .cols = 83});
                        return side.numbers(DType::f32, out, 9, 83);
                      })});
  }
}

}  // namespace

void add_row_checks(Checks& checks) {
  add_packing(checks);
  add_tables(checks);
  checks.push_back({"QuantiseRows", "bfloat16, 5 × 300", {}, one_kernel, check_quantise_rows});
  add_norms(checks);
  add_positions(checks);
  add_copies(checks);
}

}  // namespace troupe::kernels::check
