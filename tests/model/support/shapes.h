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

/// ERNIE-4.5-21B-A3B: 28 layers, all but the first with 64 experts and 2 shared ones.
inline ModelSpec large_mixture() {
  ModelSpec spec;
  spec.vocab = 103424;
  spec.hidden = 2560;
  spec.intermediate = 12288;
  spec.layers = 28;
  spec.heads = 20;
  spec.kv_heads = 4;
  spec.head_dim = 128;
  spec.experts = 64;
  spec.top_k = 6;
  spec.expert_intermediate = 1536;
  spec.shared_experts = 2;
  spec.moe_start = 1;
  spec.moe_end = 27;
  spec.max_positions = 131072;
  spec.tied = true;
  return spec;
}

}  // namespace troupe::model::test
