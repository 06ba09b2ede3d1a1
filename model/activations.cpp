#include <algorithm>

#include "model/decoder.h"

namespace troupe::model {

Activations Activations::make(const ModelSpec& spec, DType dtype, const DecoderLimits& limits, View memory) {
  Arena arena(memory);
  // The draft layer may run a row more of every sequence than the step has.
  const int most_rows = limits.rows + (spec.draft_layers > 0 ? limits.sequences : 0);
  const auto rows = static_cast<std::size_t>(most_rows);
  const auto picked = static_cast<std::size_t>(limits.sequences + limits.drafts);
  const auto half_head = static_cast<std::size_t>(spec.head_dim / 2);
  const auto stored = [&](std::size_t count, int columns) {
    return arena.take_bytes(count * static_cast<std::size_t>(kernels::padded(columns)) * size_of(dtype));
  };
  const auto fp32 = [&](std::size_t count, int columns) {
    return arena.take<float>(count * static_cast<std::size_t>(kernels::padded(columns)));
  };
  Activations made;
  const bool alone = spec.held_tokens.count == 0;
  made.residual = fp32(rows, spec.hidden);
  if (!alone) made.partial = fp32(rows, spec.hidden);
  made.x = stored(rows, spec.hidden);
  made.q = stored(rows, spec.q_width());
  made.attended = stored(rows, spec.q_width());
  // Slices of shared experts that are stored otherwise than the others run as MLPs, too.
  made.mlp = stored(rows, std::max(spec.has_dense_mlp() ? spec.intermediate : 0,
                                   spec.shared_experts > 0 ? spec.expert_intermediate : 0));
  const kernels::KvCache kv{nullptr, dtype, spec.layers, spec.kv_heads, spec.head_dim, limits.kv_format};
  made.kv = arena.take_bytes(kv.unquantised_bytes(most_rows));
  made.rope = arena.take<float>(rows * half_head * 2);
  made.gathered = fp32(static_cast<std::size_t>(limits.sequences), spec.hidden);
  made.picked = stored(picked, spec.hidden);
  made.logits = fp32(picked, spec.vocab);
  if (!alone) made.held_logits = fp32(picked, spec.tokens_held());
  made.results = arena.take<kernels::SampleResult>(picked);
  made.tops = arena.take<kernels::TopLogprob>(static_cast<std::size_t>(limits.tops));
  made.inverse_frequencies = arena.take<float>(half_head);
  if (spec.vision) made.rope_axes = arena.take<std::uint8_t>(half_head);
  if (spec.draft_layers > 0) {
    made.hidden = stored(rows, spec.hidden);
    made.kept_hidden = stored(picked, spec.hidden);
    made.drafted = stored(picked, spec.hidden);
    made.joined = stored(rows, 2 * spec.hidden);
    const auto sequences = static_cast<std::size_t>(limits.sequences);
    made.draft_logits = limits.staged ? made.logits : fp32(sequences, spec.vocab);
    made.draft_results = arena.take<kernels::SampleResult>(sequences);
  }
  made.bytes = arena.used();
  return made;
}

}  // namespace troupe::model
