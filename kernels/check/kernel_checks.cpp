// The table of checks.
#include "kernels/check/side.h"

namespace troupe::kernels::check {

const std::vector<KernelCheck>& kernel_checks() {
  static const Checks all = [] {
    Checks checks;
    add_row_checks(checks);
    add_product_checks(checks);
    add_attention_checks(checks);
    add_moe_checks(checks);
    add_sample_checks(checks);
    add_vision_checks(checks);
    add_step_checks(checks);
    add_draft_checks(checks);
    add_exchange_checks(checks);
    return checks;
  }();
  return all;
}

}  // namespace troupe::kernels::check
