#pragma once
// The vision tower of a GPU beside its steps.
//
// The tower has a Cuda of its own, so a stream, working memory and counters of its own. Its work is given to
// the GPU in pieces of some milliseconds, each behind the steps that were given before it and ahead of those
// that are given after it: side by side a step's many small kernels would each wait for multiprocessors that
// the tower's hold. The host waits for none of it.
//
// Ranks that reach each other's memory encode large items together (model/vision/item_cut.h). What a piece
// sends to the others is in their memory when it ends; the host tells them then (JointWork), and launches a
// piece when it knows that what the piece reads is there. So nothing on a GPU waits for another rank's tower,
// which may be held up behind a step whose exchange waits for this rank. As a piece is then a layer at most,
// a step waits on the host for its turn, while the ranks do several.
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/media_positions.h"
#include "base/status.h"
#include "gpu/cuda.h"
#include "gpu/cuda_event.h"
#include "gpu/region.h"
#include "ipc/wire.h"
#include "model/checkpoint/spec.h"
#include "model/ranks/collective.h"
#include "model/ranks/joint_work.h"
#include "model/result_writer.h"
#include "model/step_batch.h"
#include "model/vision/encoder_outputs.h"
#include "model/vision/tower.h"

namespace troupe::model {

/// One thread. The weights outlive it. All but make() throw CudaError.
class CudaEncoder {
 public:
  /// `frame_patches`: most of an image, or of a video's frame. `outputs`: bytes for the embeddings of items
  /// that sequences need or that are kept; of the latter so many tokens. `ranks`: that get the same items;
  /// null: alone. Of a frame that is cut a rank has at least `least_rows`.
  static Result<std::unique_ptr<CudaEncoder>> make(const CudaOptions& device, const ModelSpec& spec,
                                                   DType dtype, const VisionWeights& weights,
                                                   int frame_patches, std::size_t outputs,
                                                   std::int64_t kept_tokens,
                                                   Collective<Cuda>* ranks = nullptr,
                                                   int least_rows = kLeastRowsOfARank);

  /// To be encoded behind those that were added before. `patches` stay until take_ended() tells of it.
  void add(const wire::EncodeMedia& command, const MediaItem& item, std::span<const std::byte> patches);
  /// The next item will not be encoded on this rank.
  void skip();
  bool empty() const { return encodings_.empty(); }
  /// True if none of these rows covers an item that is still to be encoded.
  bool has_encoded(std::span<const wire::PlanRow> rows) const;

  /// Before a step with these rows is given to `steps`: puts a piece between it and the steps before it.
  void run_before_step(Cuda& steps, std::span<const wire::PlanRow> rows);
  /// While the GPU has no step: keeps it at work.
  void run_alone();
  /// The oldest encoding, if it has ended.
  bool take_ended(EndedEncoding& ended);
  /// When a piece last ended or began on an idle tower, or this rank came to an item or to its turn.
  TimePoint progress() const { return progress_; }
  /// True if a piece is on its way. Asks the GPU.
  bool is_running();
  /// True if an item that has begun waits for other ranks, or a piece is on its way.
  bool is_held_up();

  /// True while a step should not be launched: ranks encode an item together and it is their turn, or will be
  /// when the steps on the GPU have ended. It lasts some milliseconds, and ends when other ranks hold it up.
  bool has_turn();
  /// The GPU's last step has ended.
  void begin_turn();

  /// Sets EmbeddedRows::rows, all of which are there.
  void find(std::span<EmbeddedRows> rows) const;
  /// The step that runs the item's last row has ended.
  void used(SlotRef slot, int item) { outputs_.used(slot, item); }
  /// The plan that is launched next finishes the sequence.
  void finish(SlotRef slot);
  /// Forgets all encodings and what sequences need. No piece may run.
  void reset();

 private:
  struct Encoding {
    wire::EncodeMedia command{};
    MediaItem item{};
    std::span<const std::byte> patches;
    std::uint32_t number = 0;     // among all of the epoch
    std::int64_t started_ns = 0;  // 0: this rank has not come to it
    void* rows = nullptr;         // from then on: where its output goes
    bool cached = false;
    bool begun = false;     // on the tower
    bool together = false;  // with the other ranks
    bool launched = false;  // all of its pieces
    bool dropped = false;   // its sequence has ended
    bool skipped = false;
  };
  enum class Turn : std::uint8_t { over, due, running };  // due: behind the steps on the GPU

  // Pieces that are on their way; one runs and the next is there when it ends.
  static constexpr std::size_t kMostOut = 2;

  CudaEncoder(std::unique_ptr<Cuda> device, std::unique_ptr<Region<Cuda>> memory,
              std::unique_ptr<VisionTower<Cuda>> tower, std::size_t row_bytes, std::int64_t kept_tokens);

  void look();
  // True if the item is one that ranks encode together.
  bool is_joint(const Encoding& encoding) const;
  void come_to(Encoding& encoding, std::span<const wire::PlanRow> step);
  // True when the encoding's first piece may be launched.
  bool begin(Encoding& encoding);
  bool has_next(std::span<const wire::PlanRow> step);
  void pop();
  void launch(double least_operations);
  CudaEvent& end(std::size_t piece) { return ends_[piece % kMostOut]; }

  std::unique_ptr<Cuda> device_;
  std::unique_ptr<Region<Cuda>> memory_;
  std::unique_ptr<VisionTower<Cuda>> tower_;
  EncoderOutputs<Region<Cuda>> outputs_;
  Collective<Cuda>* ranks_ = nullptr;  // null: every item is encoded here alone
  std::optional<JointWork> joint_;     // with ranks_
  TowerRanks inboxes_;                 // likewise
  std::vector<std::byte*> inbox_of_;
  std::deque<Encoding> encodings_;
  std::uint32_t added_ = 0;  // in the epoch
  Turn turn_ = Turn::over;
  TimePoint turn_end_{};
  CudaEvent steps_;  // all steps that were given before a piece
  std::array<CudaEvent, kMostOut> ends_;
  std::array<int, kMostOut> sent_{};  // VisionTower::exchanges() behind the piece
  std::size_t pieces_ = 0, out_ = 0;  // launched so far, and of them those that may still run
  TimePoint progress_{};
};

}  // namespace troupe::model
