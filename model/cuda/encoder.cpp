#include "model/cuda/encoder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/scratch.h"
#include "model/vision/media_check.h"

namespace troupe::model {
namespace {

/// Operations after which a piece ends, and those of a piece's attention at most: 4 to 9 ms where 400 TFLOP/s
/// are reached.
constexpr double kPieceOperations = 1.6e12;
/// The same of a piece between two steps, 13 to 18 ms: a decode step of a large model takes 8 to 15, so the
/// tower has more than half of the GPU, and streams wait for at most one piece and one step.
constexpr double kOperationsBesideSteps = 6.5e12;
/// Uploads of more than 64 KiB go through pinned memory, which is taken at the first.
constexpr std::size_t kFirstUpload = std::size_t{128} << 10;

}  // namespace

Result<std::unique_ptr<CudaEncoder>> CudaEncoder::make(const CudaOptions& options, const ModelSpec& spec,
                                                       DType dtype, const VisionWeights& weights,
                                                       int frame_patches, std::size_t outputs,
                                                       std::int64_t kept_tokens) {
  // An item is encoded alone, so a row's bits hang on its item alone whichever kernels run.
  auto device = std::make_unique<Cuda>(
      CudaOptions{.ordinal = options.ordinal, .batch_invariant = false, .overlap = options.overlap});
  device->scratch(kernels::cuda::kBiasedSums);
  Result<Region<Cuda>> memory =
      Region<Cuda>::make(*device, std::max(outputs, kFirstUpload), "embeddings of images and videos");
  if (!memory) return memory.status();
  auto region = std::make_unique<Region<Cuda>>(std::move(*memory));
  Result<VisionTower<Cuda>> tower = VisionTower<Cuda>::make(*device, *spec.vision, spec.hidden,
                                                            spec.rms_norm_eps, dtype, weights, frame_patches);
  if (!tower) return tower.status();
  auto made = std::make_unique<VisionTower<Cuda>>(std::move(*tower));
  made->limit_attention(kPieceOperations);
  {
    const Buffer<Region<Cuda>> first = *Buffer<Region<Cuda>>::make(*region, kFirstUpload, "a first upload");
    const std::vector<std::byte> zeros(kFirstUpload);
    device->upload(first.data(), zeros.data(), zeros.size());
  }
  device->sync();
  const std::size_t row_bytes = static_cast<std::size_t>(kernels::padded(spec.hidden)) * size_of(dtype);
  return std::unique_ptr<CudaEncoder>(
      new CudaEncoder(std::move(device), std::move(region), std::move(made), row_bytes, kept_tokens));
}

CudaEncoder::CudaEncoder(std::unique_ptr<Cuda> device, std::unique_ptr<Region<Cuda>> memory,
                         std::unique_ptr<VisionTower<Cuda>> tower, std::size_t row_bytes,
                         std::int64_t kept_tokens)
    : device_(std::move(device)),
      memory_(std::move(memory)),
      tower_(std::move(tower)),
      outputs_(*memory_, row_bytes, kept_tokens) {}

void CudaEncoder::add(const wire::EncodeMedia& command, const MediaItem& item,
                      std::span<const std::byte> patches) {
  encodings_.push_back({.command = command, .item = item, .patches = patches});
}

bool CudaEncoder::has_encoded(std::span<const wire::PlanRow> rows) const {
  return std::ranges::none_of(encodings_, [&](const Encoding& encoding) {
    return covers(rows, encoding.command.slot, encoding.item);
  });
}

void CudaEncoder::look() {
  while (out_ > 0 && end(pieces_ - out_).passed()) {
    --out_;
    progress_ = Clock::now();
  }
}

bool CudaEncoder::is_running() {
  look();
  return out_ > 0;
}

// True if the oldest encoding has a piece to launch.
bool CudaEncoder::begin() {
  look();
  if (encodings_.empty() || out_ == kMostOut) return false;
  Encoding& encoding = encodings_.front();
  if (encoding.dropped || encoding.launched) return false;
  if (encoding.started_ns != 0) return true;
  // The tower is idle: the encoding before this one has ended.
  encoding.started_ns = now_ns();
  const wire::EncodeMedia& command = encoding.command;
  const auto place = outputs_.begin(command.slot, command.item, encoding.item.grid.tokens(), command.name);
  if (!place) throw CudaError(place.status().message);
  if (place->filled) {
    encoding.cached = encoding.launched = true;
    return false;
  }
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(encoding.patches.data());
  const Status begun =
      tower_->begin(encoding.item.kind, encoding.item.grid, {bytes, encoding.patches.size()}, place->rows);
  if (!begun.ok()) throw CudaError(begun.message);  // MediaCheck has admitted it
  return true;
}

// A frame's patches go through pinned memory that has room for two frames: no piece begins a second one.
void CudaEncoder::launch(double least_operations) {
  if (out_ == 0) progress_ = Clock::now();
  double operations = 0;
  bool more = true;
  do {
    more = tower_->advance();
    operations += tower_->operations();
  } while (more && operations < least_operations && !tower_->begins_frame());
  encodings_.front().launched = !more;
  end(pieces_).record(*device_);
  ++pieces_;
  ++out_;
}

void CudaEncoder::run_before_step(Cuda& steps) {
  if (begin()) {
    steps_.record(steps);
    steps_.delay(device_->stream());
    launch(kOperationsBesideSteps);
  }
  if (out_ > 0) end(pieces_ - 1).delay(steps.stream());
}

void CudaEncoder::run_alone() {
  while (begin()) launch(kPieceOperations);
}

bool CudaEncoder::take_ended(EndedEncoding& ended) {
  if (encodings_.empty()) return false;
  look();
  const Encoding& encoding = encodings_.front();
  if (out_ > 0 || !(encoding.launched || encoding.dropped)) return false;
  const std::int64_t now = now_ns();
  ended = {.slot = encoding.command.slot,
           .item = encoding.command.item,
           .dropped = encoding.dropped,
           .cached = encoding.cached,
           .started_ns = encoding.started_ns != 0 ? encoding.started_ns : now,
           .finished_ns = now};
  if (encoding.dropped) outputs_.drop(encoding.command.slot);
  encodings_.pop_front();
  return true;
}

void CudaEncoder::find(std::span<EmbeddedRows> rows) const {
  for (EmbeddedRows& some : rows) some.rows = outputs_.rows(some.slot, some.item, some.first);
}

// A piece of the sequence's item may still write to its memory, and a step read from it. Whoever gets it next
// writes to it in a piece behind both.
void CudaEncoder::finish(SlotRef slot) {
  outputs_.drop(slot);
  for (Encoding& encoding : encodings_) encoding.dropped |= encoding.command.slot == slot;
}

void CudaEncoder::reset() {
  encodings_.clear();
  outputs_.drop_all();
}

}  // namespace troupe::model
