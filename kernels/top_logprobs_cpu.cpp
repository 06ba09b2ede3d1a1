#include "kernels/top_logprobs.h"

#include <algorithm>

#include "base/check.h"
#include "gpu/cpu.h"
#include "kernels/cpu/log_sum_exp.h"
#include "kernels/cpu/routines.h"

namespace troupe::kernels {

void run(Cpu& device, const TopLogprobs& op) {
  const Routines& r = routines(device.isa());
  const auto vocab = static_cast<std::size_t>(op.vocab);
  device.reserve_lanes(vocab * sizeof(TopLogprob));
  device.pool().for_each(op.count, 1, [&](int begin, int end, int lane) {
    auto* const all = static_cast<TopLogprob*>(device.lane(lane));
    for (int i = begin; i < end; ++i) {
      const TopRow& row = op.rows[i];
      if (row.logits_row < 0) continue;
      TROUPE_CHECK(row.count > 0 && row.count <= op.vocab);
      const float* const logits =
          op.logits + static_cast<std::size_t>(row.logits_row) * static_cast<std::size_t>(op.stride);
      const Peak peak = r.peak(logits, op.vocab);
      if (!peak.finite) continue;
      for (TokenId id = 0; id < op.vocab; ++id) all[id] = {id, logits[id]};
      const auto likelier = [](const TopLogprob& a, const TopLogprob& b) {
        return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
      };
      TopLogprob* const taken = all + row.count;
      if (row.count < op.vocab) std::nth_element(all, taken, all + vocab, likelier);
      std::sort(all, taken, likelier);
      const float normaliser = log_sum_exp(r, logits, op.vocab, peak.largest);
      std::transform(all, taken, op.top + row.first, [normaliser](const TopLogprob& one) {
        return TopLogprob{one.token, one.logprob - normaliser};
      });
    }
  });
}

}  // namespace troupe::kernels
