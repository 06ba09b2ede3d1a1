#pragma once
// ForwardPass<D, R>: the ops of a step, in their order. Shapes are (rows, columns); the symbols are those of
// the ERNIE-4.5 text models:
//
//   h = E[token]
//   for every layer:  h += Wo · attention(RoPE(Wqkv · norm(h)))
//                     h += Wdown · (silu(Wgate · norm(h)) ∘ (Wup · norm(h)))
//                     (mixture of experts: h += the weighted sum of several such MLPs + the shared ones; rows
//                     of images and videos have experts of their own)
//   logits = W · norm(h), only for the rows whose logits are wanted
//
// Of rows that nothing reads behind the last layer (ForwardStep::reads) that layer makes keys and values alone.
// Their queries are made, too: they are 6 % of that layer's arithmetic in the 21B and 15 % in the 0.3B, and
// come with the keys in one product, whose quantised weights cannot be cut.
//
// Norms and sums are fp32; the inputs of products have the model's dtype.
//
// D is a device, or anything else for which the kernels' namespace has a run(D&, op):
// model/cuda/step_scratch.cpp asks each op for its working memory. So run() is called unqualified here: it is
// found where a pass is instantiated. R has the calls of Collective<D>.
#include <cmath>
#include <span>

#include "base/check.h"
#include "kernels/add_rms_norm.h"
#include "kernels/attention.h"
#include "kernels/dense_tail.h"
#include "kernels/draft_rows.h"
#include "kernels/embed.h"
#include "kernels/lm_head.h"
#include "kernels/moe.h"
#include "kernels/moe_tail.h"
#include "kernels/place_rows.h"
#include "kernels/rope_table.h"
#include "model/decoder.h"

namespace troupe::model {

template <class D, class R>
struct ForwardPass {
  D& device;
  const ModelSpec& spec;
  DType dtype;                        ///< of the activations
  R* ranks;                           ///< null: alone
  std::span<const int> token_ranges;  ///< with ranks

  void layers(const ForwardStep& step) const;
  /// Writes the logits of the batch rows `picks` to memory.logits, in that order; null: of rows 0 … count
  /// - 1.
  void logits(const WeightLayout& weights, const Activations& memory, const std::int32_t* picks,
              int count) const;
  /// The logits of rows 0 … count - 1 of memory.picked, to memory.logits.
  void head(const WeightLayout& weights, const Activations& memory, int count) const;

 protected:
  float* sum_of_ranks(const Activations& memory, int rows) const;
  void add_up(float* part, kernels::AddRmsNorm& norm) const;
  Activations gather(const Activations& memory, const std::int32_t* picks, int count) const;
};

// Where a rank's part of what is added to the residual stream goes: rank 0's to the stream itself, the
// others' to zeros.
template <class D, class R>
float* ForwardPass<D, R>::sum_of_ranks(const Activations& memory, int rows) const {
  if (ranks->shard().rank == 0) return memory.residual;
  ranks->clear(device, memory.partial, static_cast<std::size_t>(rows) * kernels::padded(spec.hidden));
  return memory.partial;
}

// The residual stream becomes the sum of all ranks' `part`. `norm`, of the op that reads the stream then, may
// run with the sum: then its weight is null afterwards.
template <class D, class R>
void ForwardPass<D, R>::add_up(float* part, kernels::AddRmsNorm& norm) const {
  if (norm.weight == nullptr)
    ranks->all_reduce(device, part, norm.residual, kernels::numbers_in(norm));
  else if (ranks->all_reduce(device, part, norm))
    norm.weight = nullptr;
}

// Memory whose queries and residual stream are the rows `picks` of `memory`, in that order. The queries go to the
// array that attention would write to, and attention's output to the one that they came from.
template <class D, class R>
Activations ForwardPass<D, R>::gather(const Activations& memory, const std::int32_t* picks, int count) const {
  const auto copy = [&](void* out, const void* from, std::size_t row_bytes) {
    run(device, kernels::CopyRows{.out = out,
                                  .rows = from,
                                  .from = picks,
                                  .count = count,
                                  .out_stride = row_bytes,
                                  .row_stride = row_bytes,
                                  .row_bytes = row_bytes});
  };
  const auto bytes = [](int columns, std::size_t each) {
    return static_cast<std::size_t>(kernels::padded(columns)) * each;
  };
  Activations gathered = memory;
  gathered.q = memory.attended;
  gathered.attended = memory.q;
  gathered.residual = memory.gathered;
  copy(gathered.q, memory.q, bytes(spec.q_width(), size_of(dtype)));
  copy(gathered.residual, memory.residual, bytes(spec.hidden, sizeof(float)));
  return gathered;
}

template <class D, class R>
void ForwardPass<D, R>::layers(const ForwardStep& s) const {
  // What the ops work on: the step's rows, and from the last layer's attention on those that are read.
  Activations memory = s.memory;
  kernels::Batch batch = s.batch;
  const std::uint8_t* kinds = s.kinds;
  const auto norm = [&](const float* weight) {
    return kernels::AddRmsNorm{.out = memory.x,
                               .residual = memory.residual,
                               .weight = weight,
                               .dtype = dtype,
                               .rows = batch.rows,
                               .cols = spec.hidden,
                               .eps = spec.rms_norm_eps};
  };

  run(device, kernels::Embed{.out = memory.residual,
                             .tokens = s.tokens,
                             .table = s.weights.embedding,
                             .rows = batch.rows,
                             .first = spec.held_tokens.first});
  const auto qkv = [&](int layer) {
    const LayerWeights& w = s.weights.layers[static_cast<std::size_t>(layer)];
    return kernels::QkvRopeKvWrite{.q = memory.q,
                                   .x = memory.x,
                                   .weight = w.qkv,
                                   .rope = memory.rope,
                                   .kv = s.kv,
                                   .layer = layer,
                                   .heads = spec.heads,
                                   .batch = batch,
                                   .norm = norm(w.input_norm),
                                   .static_kv = w.static_kv,
                                   .unquantised = memory.kv};
  };
  kernels::QkvRopeKvWrite first = qkv(0);
  // Every rank has the whole embeddings of images and videos: they replace the sum, which the norm then reads.
  kernels::AddRmsNorm no_norm = norm(nullptr);
  if (ranks != nullptr) add_up(memory.residual, s.embedded.empty() ? first.norm : no_norm);
  for (const EmbeddedRows& made : s.embedded) {
    run(device, kernels::PlaceRows{
                    .out = memory.residual + static_cast<std::size_t>(made.row) * kernels::padded(spec.hidden),
                    .rows = made.rows,
                    .dtype = dtype,
                    .count = made.count,
                    .cols = spec.hidden});
  }
  run(device, kernels::RopeTable{.out = memory.rope,
                                 .positions = s.positions,
                                 .inverse_frequencies = memory.inverse_frequencies,
                                 .axis = s.axes > 1 ? memory.rope_axes : nullptr,
                                 .axes = s.axes,
                                 .rows = batch.rows,
                                 .head_dim = spec.head_dim});
  run(device, first);
  for (int layer = 0; layer < spec.layers; ++layer) {
    const LayerWeights& w = s.weights.layers[static_cast<std::size_t>(layer)];
    const bool narrow = s.reads && layer + 1 == spec.layers;
    if (narrow) {
      if (s.reads->count == 0) return;
      memory = gather(memory, s.reads->rows, s.reads->count);
      batch = {.sequences = s.reads->sequences, .count = s.reads->count, .rows = s.reads->count, .most_tokens = 1};
      kinds = nullptr;
    }
    run(device, kernels::Attention{.out = memory.attended,
                                   .q = memory.q,
                                   .kv = s.kv,
                                   .layer = layer,
                                   .heads = spec.heads,
                                   .scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim)),
                                   .batch = batch,
                                   // RopeTable runs between StepInputs and this. Rows that are read begin
                                   // sequences of their own, behind tokens of this step.
                                   .settled = !narrow,
                                   .static_kv = w.static_kv});
    kernels::QkvRopeKvWrite next =
        layer + 1 < spec.layers ? qkv(layer + 1) : kernels::QkvRopeKvWrite{.norm = norm(nullptr)};
    kernels::LinearAdd attention_out{
        .residual = memory.residual, .x = memory.attended, .weight = w.attention_out, .rows = batch.rows};
    kernels::Mlp mlp{.residual = memory.residual,
                     .x = memory.x,
                     .activation = memory.mlp,
                     .gate_up = w.gate_up,
                     .down = w.down,
                     .rows = batch.rows,
                     .norm = norm(w.post_norm)};
    if (ranks == nullptr && !w.moe()) {
      run(device, kernels::DenseTail{.attention_out = attention_out, .mlp = mlp, .next = next});
      continue;
    }
    const auto summed = [&](auto op, kernels::AddRmsNorm& then) {
      if (ranks != nullptr) op.residual = sum_of_ranks(memory, batch.rows);
      run(device, op);
      if (ranks != nullptr) add_up(op.residual, then);
    };
    if (w.moe()) {
      const bool cut = ranks != nullptr && spec.held_experts.count == 0;
      kernels::Moe moe{.residual = memory.residual,
                       .x = memory.x,
                       .router = w.router,
                       .bias = w.router_bias,
                       .gate_up = w.expert_gate_up,
                       .down = w.expert_down,
                       .gate_up_inputs = w.gate_up_inputs,
                       .down_inputs = w.down_inputs,
                       .experts = spec.experts,
                       .first = spec.held_experts.first,
                       .held = spec.experts_held(),
                       .parts = cut,
                       .shared = w.expert_down.count - spec.experts_held(),
                       .top_k = spec.top_k,
                       .rows = batch.rows,
                       .norm = norm(w.post_norm),
                       .kinds = kinds,
                       .kind = kTextRow,
                       .slots = batch.slots,
                       .largest = s.largest.of_layer(layer, spec.experts)};
      const bool one_part = kinds == nullptr && w.shared_down.count == 0;
      if (one_part && ranks == nullptr) {
        run(device, kernels::MoeTail{.attention_out = attention_out, .moe = moe, .next = next});
        continue;
      }
      summed(attention_out, moe.norm);
      if (one_part) {
        summed(moe, next.norm);
      } else {
        // Both kinds of experts, and shared ones of another format, add to one part.
        if (ranks != nullptr) moe.residual = sum_of_ranks(memory, batch.rows);
        run(device, moe);
        if (kinds != nullptr) {
          run(device, kernels::Moe{.residual = moe.residual,
                                   .x = memory.x,
                                   .router = w.vision.router,
                                   .bias = w.vision.router_bias,
                                   .gate_up = w.vision.gate_up,
                                   .down = w.vision.down,
                                   .experts = spec.experts,
                                   .first = spec.held_experts.first,
                                   .held = spec.experts_held(),
                                   .parts = cut,
                                   .top_k = spec.top_k,
                                   .rows = batch.rows,
                                   .kinds = kinds,
                                   .kind = kVisionRow,
                                   .slots = batch.slots});
        }
        for (int slice = 0; slice < w.shared_down.count; ++slice) {
          run(device, kernels::Mlp{.residual = moe.residual,
                                   .x = memory.x,
                                   .activation = memory.mlp,
                                   .gate_up = w.shared_gate_up.at(slice),
                                   .down = w.shared_down.at(slice),
                                   .rows = batch.rows});
        }
        if (ranks != nullptr) add_up(moe.residual, next.norm);
      }
    } else {
      summed(attention_out, mlp.norm);
      summed(mlp, next.norm);
    }
    if (next.weight.data != nullptr) run(device, next);
  }
  if (!s.reads) return;
  const std::size_t row_bytes = static_cast<std::size_t>(kernels::padded(spec.hidden)) * sizeof(float);
  run(device, kernels::CopyRows{.out = s.memory.residual,
                                .rows = memory.residual,
                                .to = s.reads->rows,
                                .count = s.reads->count,
                                .out_stride = row_bytes,
                                .row_stride = row_bytes,
                                .row_bytes = row_bytes});
}

template <class D, class R>
void ForwardPass<D, R>::logits(const WeightLayout& weights, const Activations& memory,
                               const std::int32_t* picks, int count) const {
  run(device, kernels::AddRmsNorm{.out = memory.picked,
                                  .residual = memory.residual,
                                  .weight = weights.final_norm,
                                  .pick = picks,
                                  .dtype = dtype,
                                  .rows = count,
                                  .cols = spec.hidden,
                                  .eps = spec.rms_norm_eps});
  head(weights, memory, count);
}

template <class D, class R>
void ForwardPass<D, R>::head(const WeightLayout& weights, const Activations& memory, int count) const {
  float* const logits = ranks == nullptr ? memory.logits : memory.held_logits;
  run(device,
      kernels::LmHead{.logits = logits, .x = memory.picked, .weight = weights.lm_head, .rows = count});
  if (ranks == nullptr) return;
  ranks->all_gather(device, logits, static_cast<std::size_t>(kernels::padded(spec.tokens_held())),
                    memory.logits, static_cast<std::size_t>(kernels::padded(spec.vocab)), count,
                    token_ranges);
}

}  // namespace troupe::model
