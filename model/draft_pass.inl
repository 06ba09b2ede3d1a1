#pragma once
// DraftPass<D, R>: the ops of the draft layer, ERNIE-4.5's layer for multi-token prediction. Row r has a hidden
// row h of the position before it, and a token t:
//
//   u = Wproject · [norm(E[t]) | norm(h)]
//   v = the block of a dense layer, with keys and values of its own, of u
//   logits = W · norm(v), of the token after t
//
// Embedding, the last norm and the head W are the model's. h is the model's last residual row after the final
// norm; where the layer runs again, it is norm(v). DraftNorms can switch both norms off.
#include "kernels/draft_rows.h"
#include "model/draft_layer.h"
#include "model/forward_pass.inl"

namespace troupe::model {

/// Everything the draft layer reads and writes; device memory.
struct DraftStep {
  const WeightLayout& weights;
  const Activations& memory;
  kernels::KvCache kv{};
  kernels::Batch batch{};  ///< positions are KV slots of the layer, from 1 on
  const TokenId* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  const void* hidden = nullptr;        ///< DraftInput::hidden
  const std::int32_t* from = nullptr;  ///< DraftInput::from; negative: of memory.kept_hidden
  int count = 0;       ///< rows that draft. 0: only keys and values are wanted, which depend on u alone
  const std::int32_t* picks = nullptr;           ///< DeviceDrafts::picks
  const kernels::SequenceRows* ends = nullptr;  ///< DeviceDrafts::ends

  /// From this many rows for each that drafts on, as with prompts, only the latter pass attention and the MLP.
  static constexpr int kRowsApart = 8;
  bool apart() const { return ends != nullptr && batch.rows >= kRowsApart * count; }
  /// Where v lies, of all rows or of those that draft.
  float* output() const { return apart() ? memory.gathered : memory.residual; }
};

template <class D, class R>
struct DraftPass : ForwardPass<D, R> {
  using ForwardPass<D, R>::device, ForwardPass<D, R>::spec, ForwardPass<D, R>::dtype, ForwardPass<D, R>::ranks;

  /// Writes the residual rows `picks`, null: rows 0 … count - 1, to `out` as hidden rows or inputs of the
  /// head.
  void pick(const WeightLayout& weights, const Activations& memory, void* out, const std::int32_t* picks,
            int count, bool normed) const;
  /// Leaves v in step.output(), if the step drafts.
  void layer(const DraftStep& step) const;

 private:
  void attend(const DraftStep& step, const Activations& memory, const kernels::Batch& batch) const;
};

template <class D, class R>
void DraftPass<D, R>::pick(const WeightLayout& weights, const Activations& memory, void* out,
                           const std::int32_t* picks, int count, bool normed) const {
  if (!normed) {
    return run(device, kernels::RoundRows{.out = out,
                                          .rows = memory.residual,
                                          .pick = picks,
                                          .dtype = dtype,
                                          .count = count,
                                          .cols = spec.hidden});
  }
  run(device, kernels::AddRmsNorm{.out = out,
                                  .residual = memory.residual,
                                  .weight = weights.final_norm,
                                  .pick = picks,
                                  .dtype = dtype,
                                  .rows = count,
                                  .cols = spec.hidden,
                                  .eps = spec.rms_norm_eps});
}

template <class D, class R>
void DraftPass<D, R>::layer(const DraftStep& s) const {
  const int rows = s.batch.rows;
  const DraftWeights& draft = s.weights.draft;
  const LayerWeights& block = draft.block;
  const auto norm = [&](const float* weight) {
    return kernels::AddRmsNorm{.out = s.memory.x,
                               .residual = s.memory.residual,
                               .weight = weight,
                               .dtype = dtype,
                               .rows = rows,
                               .cols = spec.hidden,
                               .eps = spec.rms_norm_eps};
  };
  kernels::AddRmsNorm no_norm = norm(nullptr);
  run(device, kernels::Embed{.out = s.memory.residual,
                             .tokens = s.tokens,
                             .table = s.weights.embedding,
                             .rows = rows,
                             .first = spec.held_tokens.first});
  if (ranks != nullptr) this->add_up(s.memory.residual, no_norm);
  run(device, kernels::DraftInput{.out = s.memory.joined,
                                  .residual = s.memory.residual,
                                  .hidden = s.hidden,
                                  .kept = s.memory.kept_hidden,
                                  .from = s.from,
                                  .embedding_norm = draft.embedding_norm,
                                  .hidden_norm = draft.hidden_norm,
                                  .dtype = dtype,
                                  .rows = rows,
                                  .cols = spec.hidden,
                                  .eps = spec.rms_norm_eps});
  // Every rank has the whole projection.
  run(device, kernels::LinearAdd{.residual = s.memory.residual,
                                 .x = s.memory.joined,
                                 .weight = draft.projection,
                                 .rows = rows});
  run(device, kernels::RopeTable{.out = s.memory.rope,
                                 .positions = s.positions,
                                 .inverse_frequencies = s.memory.inverse_frequencies,
                                 .rows = rows,
                                 .head_dim = spec.head_dim});
  run(device, kernels::QkvRopeKvWrite{.q = s.memory.q,
                                      .x = s.memory.x,
                                      .weight = block.qkv,
                                      .rope = s.memory.rope,
                                      .kv = s.kv,
                                      .layer = spec.layers,
                                      .heads = spec.heads,
                                      .batch = s.batch,
                                      .norm = norm(block.input_norm),
                                      .unquantised = s.memory.kv});
  if (s.count == 0) return;
  Activations memory = s.memory;
  kernels::Batch batch = s.batch;
  if (s.apart()) {
    memory = this->gather(memory, s.picks, s.count);
    batch = {.sequences = s.ends, .count = s.count, .rows = s.count, .most_tokens = 1};
  }
  attend(s, memory, batch);
}

// What follows the keys and values, of the rows of `batch`.
template <class D, class R>
void DraftPass<D, R>::attend(const DraftStep& s, const Activations& memory, const kernels::Batch& batch) const {
  const LayerWeights& block = s.weights.draft.block;
  kernels::AddRmsNorm norm{.out = memory.x,
                           .residual = memory.residual,
                           .weight = block.post_norm,
                           .dtype = dtype,
                           .rows = batch.rows,
                           .cols = spec.hidden,
                           .eps = spec.rms_norm_eps};
  kernels::AddRmsNorm no_norm = norm;
  no_norm.weight = nullptr;
  run(device, kernels::Attention{.out = memory.attended,
                                 .q = memory.q,
                                 .kv = s.kv,
                                 .layer = spec.layers,
                                 .heads = spec.heads,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim)),
                                 .batch = batch,
                                 .first = 1});
  kernels::LinearAdd attention_out{
      .residual = memory.residual, .x = memory.attended, .weight = block.attention_out, .rows = batch.rows};
  kernels::Mlp mlp{.residual = memory.residual,
                   .x = memory.x,
                   .activation = memory.mlp,
                   .gate_up = block.gate_up,
                   .down = block.down,
                   .rows = batch.rows,
                   .norm = norm};
  if (ranks == nullptr) {
    return run(device, kernels::DenseTail{.attention_out = attention_out, .mlp = mlp, .next = {.norm = no_norm}});
  }
  attention_out.residual = this->sum_of_ranks(memory, batch.rows);
  run(device, attention_out);
  this->add_up(attention_out.residual, mlp.norm);
  mlp.residual = this->sum_of_ranks(memory, batch.rows);
  run(device, mlp);
  this->add_up(mlp.residual, no_norm);
}

}  // namespace troupe::model
