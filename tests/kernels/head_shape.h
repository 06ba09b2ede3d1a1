#pragma once
// What tests of attention vary: its heads, and which positions of a sequence one step computes.

namespace troupe::kernels {

struct HeadShape {
  int heads, kv_heads, head_dim;
};

/// Positions [position, position + tokens) of a sequence, computed in one step.
struct StepPart {
  int position = 0, tokens = 1;
};

}  // namespace troupe::kernels
