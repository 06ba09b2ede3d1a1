#include "kernels/cuda/product/choose.h"

namespace troupe::kernels::cuda {
namespace {

/// Rows from which wgmma beats streaming; a grouped product's rows are those of an average group.
constexpr int kManyRows = 32;
constexpr int kManyRowsOfGroup = 12;

/// A stream expands codes anew for each tile of rows; before wgmma all are expanded once, which takes the
/// time of writing and reading them as bf16.
constexpr int kManyRowsOfCodes = 256;
constexpr int kManyRowsOfGroupOfCodes = 96;

/// True if it is faster than any other way.
bool unpacks(const LinearShape& s, const GpuTraits& gpu) {
  if (!unpacked_takes(s, gpu) || !gpu.may(KernelWay::product_unpacked)) return false;
  const bool expands =
      (s.format.kind == WeightKind::int8 || s.format.group != 0) && gpu.may(KernelWay::product_expanded);
  return s.rows > kManyRowsOfUnpacked * s.groups && (!expands || s.rows <= kMostRowsOfUnpacked * s.groups);
}

bool many_rows(const LinearShape& s) {
  const bool codes = s.format.quantised() && !s.format.fp8();
  return s.grouped() ? s.rows > (codes ? kManyRowsOfGroupOfCodes : kManyRowsOfGroup) * s.groups
                     : s.rows > (codes ? kManyRowsOfCodes : kManyRows);
}

LinearChoice streamed(const LinearShape& s, const GpuTraits& gpu, const char* reason) {
  if (!gpu.may(KernelWay::product_stream))
    return {.way = LinearWay::generic, .reason = "streams compute wrongly on this GPU"};
  return {.way = LinearWay::stream, .reason = reason, .stream = stream_plan(s, gpu)};
}

/// Streams for few rows, wgmma for many.
LinearChoice with_tensor_cores(const LinearShape& s, const GpuTraits& gpu) {
  if (s.ending == Ending::qkv && s.head_dim % 4 != 0)
    return {.way = LinearWay::generic, .reason = "head_dim is not a multiple of 4"};
  if (gpu.batch_invariant) return streamed(s, gpu, "batch-invariant: the same sums whatever the rows");
  if (unpacks(s, gpu)) return {.way = LinearWay::unpacked, .reason = "many rows in an average group"};
  if (!many_rows(s)) {
    return streamed(s, gpu,
                    s.grouped() ? "few rows in an average group" : "few rows: bound by reading the weights");
  }
  const bool expands = s.format.quantised() && !s.format.fp8();
  if (!gpu.may(expands ? KernelWay::product_expanded : KernelWay::product_wgmma))
    return streamed(s, gpu, "many rows, but wgmma computes wrongly on this GPU");
  if (wgmma_takes(s, gpu) && s.format.kind != WeightKind::wint2) {
    return {.way = expands ? LinearWay::expanded : LinearWay::wgmma,
            .reason = "many rows: bound by arithmetic",
            .wgmma_tile = wgmma_plan(s, gpu)};
  }
  return streamed(s, gpu,
                  s.format.kind == WeightKind::wint2 ? "many rows, but wint2 is not expanded in memory"
                  : gpu.features.wgmma ? "many rows, but wgmma needs head_dim to be a multiple of 64"
                                       : "many rows, and the GPU has no wgmma");
}

std::string number(int n) { return std::to_string(n); }

}  // namespace

LinearChoice choose(const LinearShape& s, const GpuTraits& gpu) {
  if (s.format.kind == WeightKind::fp8) {
    if (s.consumes_halved_norm || s.produces_halved_norm) return {.reason = "no strips multiply fp8"};
    if (s.activations() != DType::bf16)
      return {.way = LinearWay::generic, .reason = "tensor core kernels multiply fp8 beside bfloat16 alone"};
    if (!gpu.features.fp8) return {.way = LinearWay::generic, .reason = "the GPU has no fp8 tensor cores"};
    return with_tensor_cores(s, gpu);
  }
  if (const StripPlan plan = strip_plan(s, gpu); plan && gpu.may(KernelWay::product_strips)) {
    return {.way = LinearWay::strips,
            .reason = "few rows, and its weights nearly fit shared memory",
            .strips = plan};
  }
  if (const SlabPlan plan = slab_plan(s, gpu); plan && gpu.may(KernelWay::product_slabs)) {
    return {.way = LinearWay::slabs,
            .reason = "9 to 64 rows, and its weights nearly fit shared memory",
            .slabs = plan};
  }
  if (s.consumes_halved_norm || s.produces_halved_norm)
    return {.reason = "only strips and slabs halve norms"};
  if (s.activations() == DType::f32)
    return {.way = LinearWay::generic, .reason = "float32 has no tensor core kernel"};
  if (s.format.kind == WeightKind::wint2 && !s.grouped())
    return {.way = LinearWay::generic, .reason = "experts alone are wint2"};
  if (s.format.quantised() && s.activations() == DType::f16)
    return {.way = LinearWay::generic,
            .reason = "codes are expanded to bfloat16, and the activations are float16"};
  return with_tensor_cores(s, gpu);
}

DenseTailChoice choose(const DenseTailShape& shape, const GpuTraits& gpu) {
  if (!shape.plain_norms) return {.reason = "its norms do more than normalise"};
  LinearShape products[] = {shape.attention_out, shape.gate_up, shape.down, shape.next};
  products[0].produces_halved_norm = products[1].consumes_halved_norm = true;
  products[2].produces_halved_norm = products[3].consumes_halved_norm = shape.has_next;
  DenseTailChoice choice{.count = shape.has_next ? 4 : 3};
  for (int i = 0; i < choice.count; ++i) {
    LinearChoice& made = choice.products[static_cast<std::size_t>(i)];
    made = choose(products[i], gpu);
    if ((made.way != LinearWay::strips && made.way != LinearWay::slabs) || made.way != choice.products[0].way)
      return {.reason = "not all of its products run as strips or slabs with halved norms"};
  }
  choice.halved_norms = true;
  choice.reason = choice.products[0].way == LinearWay::strips ? "all of its products run as strips"
                                                              : "all of its products run as slabs";
  return choice;
}

const char* to_string(LinearWay way) {
  switch (way) {
    case LinearWay::unsupported: return "unsupported";
    case LinearWay::generic: return "generic";
    case LinearWay::stream: return "stream";
    case LinearWay::strips: return "strips";
    case LinearWay::slabs: return "slabs";
    case LinearWay::wgmma: return "wgmma";
    case LinearWay::unpacked: return "codes unpacked for wgmma";
    case LinearWay::expanded: return "expanded, then wgmma";
  }
  return "?";
}

const char* to_string(Ending ending) {
  switch (ending) {
    case Ending::store_f32: return "store_f32";
    case Ending::store_scaled: return "store_scaled";
    case Ending::add: return "add";
    case Ending::swiglu: return "swiglu";
    case Ending::qkv: return "qkv";
  }
  return "?";
}

std::string to_string(const LinearShape& s) {
  return (s.grouped() ? number(s.groups) + " × " : std::string()) + number(s.outputs) + " × " +
         number(s.inputs) + " " + to_string(s.format) + ", " + number(s.rows) +
         (s.rows == 1 ? " row" : " rows");
}

std::string to_string(const LinearChoice& c) {
  std::string text = to_string(c.way);
  if (c.way == LinearWay::strips) {
    const StripPlan& p = c.strips;
    text += ": " + number(p.blocks) + " blocks of " + number(p.outputs) + " outputs";
    if (p.kernel.cluster > 1) text += ", clusters of " + number(p.kernel.cluster);
    text += ", copy interval " + number(p.copy_interval_cycles) + " cycles per KiB";
  } else if (c.way == LinearWay::slabs) {
    const SlabPlan& p = c.slabs;
    text += ": " + number(p.blocks) + " blocks, clusters of " + number(p.kernel.cluster) + " with " +
            number(p.kernel.outputs) + " outputs, copy interval " + number(p.copy_interval_cycles) +
            " cycles per KiB";
  } else if (c.way == LinearWay::stream) {
    const StreamPlan& p = c.stream;
    text += ": tiles of " + number(p.outputs) + " outputs × " + number(p.tile_rows) + " rows";
    if (p.cluster > 1) text += ", clusters of " + number(p.cluster);
    text += ", " + number(p.stages) + (p.stages == 1 ? " stage of " : " stages of ") +
            number(p.boxes * streaming::kBox) + " inputs";
  } else if (c.way == LinearWay::wgmma || c.way == LinearWay::expanded) {
    const WgmmaTile& t = kWgmmaTiles[c.wgmma_tile];
    text += ": tiles of " + number(t.columns) + " outputs × " + number(t.rows) + " rows";
    if (t.cluster > 1) text += ", clusters of " + number(t.cluster);
  }
  return text + " (" + c.reason + ")";
}

}  // namespace troupe::kernels::cuda
