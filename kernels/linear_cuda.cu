// Running a product as the chooser says. Each way launches its kernels in a file of its own.
#include "base/check.h"
#include "kernels/cuda/product/linear.h"
#include "kernels/cuda/scratch.h"
#include "kernels/quantise_rows.h"

namespace troupe::kernels::cuda {

void run(Cuda& device, const Linear& linear, const LinearChoice& choice) {
  switch (choice.way) {
    case LinearWay::generic: return run_generic(device, linear);
    case LinearWay::stream: return run_stream(device, linear, choice.stream);
    case LinearWay::strips: return run_strips(device, linear, choice.strips);
    case LinearWay::slabs: return run_slabs(device, linear, choice.slabs);
    case LinearWay::wgmma: return run_wgmma(device, linear, choice.wgmma_tile);
    case LinearWay::unpacked: return run_unpacked(device, linear);
    case LinearWay::expanded: return run_expanded(device, linear, choice.wgmma_tile);
    case LinearWay::unsupported: break;
  }
  TROUPE_CHECK(false);
}

Linear with_coded_x(Cuda& device, const Linear& linear, void* memory) {
  if (!takes_coded_x(linear.weight.format) || linear.x_codes != nullptr) return linear;
  TROUPE_CHECK(linear.groups.gather == nullptr);  // the rows of x are not known
  QuantiseRows op{
      .x = linear.x, .dtype = linear.weight.activations(), .rows = linear.rows, .cols = linear.weight.inputs};
  lay_out(op, memory);
  Linear coded = linear;
  if (linear.norm.weight != nullptr) {
    coded.norm.out = nullptr;
    coded.norm.codes = op.codes;
    coded.norm.scales = op.scales;
  } else {
    run(device, op);
  }
  coded.x_codes = op.codes;
  coded.x_scales = op.scales;
  return coded;
}

void run(Cuda& device, const Linear& linear) {
  if (linear.rows <= 0) return;
  const LinearChoice choice = choose(shape_of(linear), traits_of(device));
  auto* const memory = static_cast<std::byte*>(device.scratch(scratch_bytes(linear, choice.way)));
  Linear ready = with_coded_x(device, linear, memory);
  if (ready.working_memory == nullptr) ready.working_memory = memory + coded_x_bytes(linear);
  if (ready.norm.weight != nullptr) run(device, ready.norm);
  run(device, ready, choice);
}

}  // namespace troupe::kernels::cuda
