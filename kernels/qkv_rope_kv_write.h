#pragma once
// Projection to query, key and value, rotary embedding, and the write to KV memory.
#include "gpu/device.h"
#include "kernels/add_rms_norm.h"
#include "kernels/batch.h"
#include "kernels/matrix.h"
#include "kernels/static_kv.h"

namespace troupe::kernels {

/// y[r] = weight · x[r]: heads * head_dim queries, then kv_heads * head_dim keys, then as many values.
/// Queries and keys are rotated in fp32, interleaved pairs (2i, 2i+1):
///   out[2i] = y[2i] cos a_i - y[2i+1] sin a_i,  out[2i+1] = y[2i+1] cos a_i + y[2i] sin a_i.
/// Queries go to `q`, keys and values to batch.slots[r] of `kv`, all rounded to its dtype; a quantised `kv`
/// gets their codes and scales (quantize_kv.h). With static scales (kv.format int8) a
/// channel's code is number · 127 / largest magnitude, rounded half away from zero and clamped to ±127, the
/// scales of tokens are 1, and queries are multiplied by largest magnitude / 127 of their KV head's channels
/// before they are rounded, so that attention multiplies plain codes.
struct QkvRopeKvWrite {
  void* q = nullptr;            ///< (rows, padded(heads * head_dim)) of kv.dtype
  const void* x = nullptr;      ///< (rows, padded(hidden)) of weight.activations()
  Matrix weight{};              ///< (heads + 2 * kv.kv_heads) * kv.head_dim outputs, hidden inputs
  const float* rope = nullptr;  ///< RopeTable::out of this batch
  KvCache kv{};                 ///< kv.dtype == weight.activations()
  int layer = 0;
  int heads = 0;
  Batch batch{};
  AddRmsNorm norm{};  ///< if it has a weight, it runs first; its `out` is x
  StaticKv static_kv{};
  void* unquantised =
      nullptr;  ///< kv.unquantised_bytes(batch.rows) of working memory: K and V before quantisation
};

void run(Cpu& device, const QkvRopeKvWrite& op);
void run(Cuda& device, const QkvRopeKvWrite& op);

}  // namespace troupe::kernels
