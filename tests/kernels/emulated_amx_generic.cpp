// On CPUs other than x86-64 nothing emulates AMX, and the tests that ask are skipped.
#include "base/check.h"
#include "kernels/emulated_amx.h"

namespace troupe::kernels {

bool has_shapes() { return false; }
int shapes_loaded() { return 0; }
void spoil_products(bool) {}
void add_bf16_product(float*, const unsigned short*, const unsigned short*, int, int) {
  TROUPE_CHECK(false && "there is no emulation");
}

}  // namespace troupe::kernels
