#pragma once
// Shapes of published models, for tests of arithmetic on shapes.
#include "model/checkpoint/spec.h"

namespace troupe::model::test {

/// ERNIE-4.5-0.3B: 18 layers of two KV heads of 128; 18,432 bytes a token in bf16, 1,179,648 a block.
inline ModelSpec small_ernie() {
  ModelSpec spec;
  spec.vocab = 103424;
  spec.hidden = 1024;
  spec.intermediate = 3072;
  spec.layers = 18;
  spec.heads = 16;
  spec.kv_heads = 2;
  spec.head_dim = 128;
  spec.max_positions = 131072;
  spec.tied = true;
  return spec;
}

}  // namespace troupe::model::test
