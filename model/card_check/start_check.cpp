#include "model/card_check/start_check.h"

#include "base/trial.h"

namespace troupe::model {

Result<StartCheck> check_at_start(const StartCheckOrder& order) {
  if (order.when == config::CheckGpu::never)
    return StartCheck{.line = "kernels   not checked (--check-gpu never)"};
  const bool always = order.when == config::CheckGpu::always;
  if (!always && order.verified) return StartCheck{.line = "kernels   verified on the " + order.key.card};
  if (!always) {
    const std::optional<CardCheck> kept = kept_check(order.directory, order.key);
    if (kept && kept->usable) return StartCheck{.line = check_line(*kept, true), .avoided = kept->avoided};
  }
  if (order.only_look) {
    const Status kept = try_directory(order.directory);
    return StartCheck{
        .line = "kernels   checked at the start, which takes some seconds",
        .avoided = {},
        .warning = kept.ok() ? "" : "what the check of the GPU's kernels finds is not kept: " + kept.message};
  }
  const Result<CardCheck> made = check_card(order.ordinal, order.start, order.limits);
  if (!made) {
    return StartCheck{.line = "kernels   not checked",
                      .avoided = {},
                      .warning = "the kernels of the " + order.key.card +
                                 " could not be checked: " + made.status().message};
  }
  const Status kept = keep_check(order.directory, order.key, *made);
  if (!made->usable) return failure(Code::unsupported, refusal(*made, order.key));
  return StartCheck{
      .line = check_line(*made, false), .avoided = made->avoided, .warning = kept.ok() ? "" : kept.message};
}

}  // namespace troupe::model
