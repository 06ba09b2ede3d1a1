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
/// Of ranks that encode together: how long they do between two steps, as long as a piece between two steps
/// takes; and how long one waits for the others before it gives the next step to the GPU, which they may be
/// in.
constexpr Duration kTurn = std::chrono::milliseconds(15);
constexpr Duration kTurnPatience = std::chrono::microseconds(500);
/// Between other sequences' steps ranks seldom have their turn at the same time, and a block of the tower
/// waits for all of them: of a 1080p image, 10,336 rows, the first token came after 488 ms, and after 247 ms
/// where each rank encoded it (two H100s, 32 streams of a 28B model). One of 65,536 rows had it after 1.7 s
/// together; one idle GPU takes 2.0 s.
constexpr int kLeastRowsBesideSteps = 32'768;
/// Uploads of more than 64 KiB go through pinned memory, which is taken at the first.
constexpr std::size_t kFirstUpload = std::size_t{128} << 10;

}  // namespace

Result<std::unique_ptr<CudaEncoder>> CudaEncoder::make(const CudaOptions& options, const ModelSpec& spec,
                                                       DType dtype, const VisionWeights& weights,
                                                       int frame_patches, std::size_t outputs,
                                                       std::int64_t kept_tokens, Collective<Cuda>* ranks,
                                                       int least_rows) {
  // An item is encoded alone, so a row's bits hang on its item alone whichever kernels run.
  auto device = std::make_unique<Cuda>(CudaOptions{.ordinal = options.ordinal,
                                                   .batch_invariant = false,
                                                   .overlap = options.overlap,
                                                   .avoided = options.avoided});
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
  std::unique_ptr<CudaEncoder> encoder(
      new CudaEncoder(std::move(device), std::move(region), std::move(made), row_bytes, kept_tokens));
  if (ranks == nullptr) return encoder;
  const Shard& shard = ranks->shard();
  const std::size_t packed =
      packed_bytes(*encoder->device_, frame_attention_of(*spec.vision, dtype, frame_patches));
  const std::size_t inbox = tower_inbox_bytes(spec.hidden, dtype, frame_patches, packed, shard.ranks);
  if (!ranks->share(inbox)) return encoder;
  encoder->ranks_ = ranks;
  encoder->joint_.emplace(ranks->meeting());
  encoder->inbox_of_.resize(static_cast<std::size_t>(shard.ranks));
  encoder->inboxes_ = {
      .rank = shard.rank, .inboxes = encoder->inbox_of_, .inbox_bytes = inbox, .least_rows = least_rows};
  return encoder;
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
  encodings_.push_back({.command = command, .item = item, .patches = patches, .number = added_++});
}

void CudaEncoder::skip() {
  encodings_.push_back({.number = added_++, .skipped = true});
  if (encodings_.front().skipped) pop();
}

// Removes the oldest encoding if it has ended, and those to be skipped behind it.
void CudaEncoder::pop() {
  if (!encodings_.front().skipped) encodings_.pop_front();
  while (!encodings_.empty() && encodings_.front().skipped) {
    if (joint_) joint_->refuse(encodings_.front().number);
    encodings_.pop_front();
  }
}

bool CudaEncoder::is_joint(const Encoding& encoding) const {
  return joint_ && cut_of(encoding.item.grid, ranks_->shard().ranks, inboxes_.least_rows) != ItemCut::whole;
}

bool CudaEncoder::has_encoded(std::span<const wire::PlanRow> rows) const {
  return std::ranges::none_of(encodings_, [&](const Encoding& encoding) {
    return !encoding.skipped && covers(rows, encoding.command.slot, encoding.item);
  });
}

void CudaEncoder::look() {
  while (out_ > 0 && end(pieces_ - out_).passed()) {
    if (encodings_.front().together) joint_->sent(sent_[(pieces_ - out_) % kMostOut]);
    --out_;
    progress_ = Clock::now();
  }
}

bool CudaEncoder::is_running() {
  look();
  return out_ > 0;
}

bool CudaEncoder::is_held_up() {
  if (is_running()) return true;
  if (encodings_.empty()) return false;
  const Encoding& encoding = encodings_.front();
  return encoding.started_ns != 0 && !encoding.launched && !encoding.dropped;
}

// The tower is idle: the encoding before this one has ended.
void CudaEncoder::come_to(Encoding& encoding, std::span<const wire::PlanRow> step) {
  encoding.started_ns = now_ns();
  progress_ = Clock::now();
  const wire::EncodeMedia& command = encoding.command;
  const auto place = outputs_.begin(command.slot, command.item, encoding.item.grid.tokens(), command.name);
  if (!place) throw CudaError(place.status().message);
  encoding.rows = place->rows;
  encoding.cached = place->filled;
  if (!is_joint(encoding)) return;
  const PatchGrid& grid = encoding.item.grid;
  const bool waits = cut_of(grid, ranks_->shard().ranks, inboxes_.least_rows) == ItemCut::rows &&
                     grid.rows * grid.columns < kLeastRowsBesideSteps;
  const bool beside_others =
      std::ranges::any_of(step, [&](const wire::PlanRow& row) { return row.slot != encoding.command.slot; });
  if (beside_others && waits && !encoding.cached) {
    joint_->refuse(encoding.number);
  } else {
    joint_->begin(encoding.number, encoding.cached);
  }
}

bool CudaEncoder::begin(Encoding& encoding) {
  JointWork::Way way = encoding.cached ? JointWork::Way::cached : JointWork::Way::alone;
  if (is_joint(encoding)) way = joint_->way();
  if (way == JointWork::Way::open) return false;
  encoding.cached = way == JointWork::Way::cached;
  if (encoding.cached) {
    encoding.launched = true;
    return false;
  }
  TowerRanks ranks;
  if (way == JointWork::Way::together) {
    for (int rank = 0; rank < ranks_->shard().ranks; ++rank)
      inbox_of_[static_cast<std::size_t>(rank)] = ranks_->shared(rank);
    ranks = inboxes_;
  }
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(encoding.patches.data());
  const Status begun = tower_->begin(encoding.item.kind, encoding.item.grid, {bytes, encoding.patches.size()},
                                     encoding.rows, ranks);
  if (!begun.ok()) throw CudaError(begun.message);  // MediaCheck has admitted it
  encoding.begun = true;
  encoding.together = way == JointWork::Way::together;
  return true;
}

// True if the oldest encoding has a piece to launch.
bool CudaEncoder::has_next(std::span<const wire::PlanRow> step) {
  look();
  if (encodings_.empty() || out_ == kMostOut) return false;
  Encoding& encoding = encodings_.front();
  if (encoding.dropped || encoding.launched) return false;
  if (encoding.started_ns == 0) come_to(encoding, step);
  if (!encoding.begun) return begin(encoding);
  return tower_->exchanges() == 0 || joint_->have_sent(tower_->exchanges());
}

bool CudaEncoder::has_turn() {
  if (turn_ == Turn::running) {
    const TimePoint now = Clock::now();
    if (now > turn_end_ || (!is_running() && now - progress_ > kTurnPatience)) turn_ = Turn::over;
  }
  if (turn_ == Turn::over || encodings_.empty()) return false;
  const Encoding& encoding = encodings_.front();
  return encoding.together && !encoding.launched && !encoding.dropped;
}

void CudaEncoder::begin_turn() {
  if (turn_ != Turn::due) return;
  turn_ = Turn::running;
  progress_ = Clock::now();
  turn_end_ = progress_ + kTurn;
}

// A frame's patches go through pinned memory that has room for two frames: no piece begins a second one. Nor
// does one go on behind what it sends to other ranks, which wait for its end.
void CudaEncoder::launch(double least_operations) {
  if (out_ == 0) progress_ = Clock::now();
  double operations = 0;
  const int exchanges = tower_->exchanges();
  bool more = true;
  do {
    more = tower_->advance();
    operations += tower_->operations();
  } while (more && operations < least_operations && !tower_->begins_frame() &&
           tower_->exchanges() == exchanges);
  encodings_.front().launched = !more;
  sent_[pieces_ % kMostOut] = tower_->exchanges();
  end(pieces_).record(*device_);
  ++pieces_;
  ++out_;
}

void CudaEncoder::run_before_step(Cuda& steps, std::span<const wire::PlanRow> rows) {
  if (has_next(rows)) {
    steps_.record(steps);
    steps_.delay(device_->stream());
    launch(kOperationsBesideSteps);
  }
  if (out_ > 0) end(pieces_ - 1).delay(steps.stream());
  turn_ = Turn::due;
}

void CudaEncoder::run_alone() {
  while (has_next({})) launch(kPieceOperations);
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
  pop();
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
  added_ = 0;
  turn_ = Turn::over;
  outputs_.drop_all();
}

}  // namespace troupe::model
