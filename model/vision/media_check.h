#pragma once
// Validates the records about images and videos before a worker acts on them, and what plans say of such
// sequences: beside PlanCheck, which knows nothing of media.
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/media_positions.h"
#include "base/status.h"
#include "ipc/wire.h"

namespace troupe::model {

/// True if a row runs a token of the sequence's item.
bool covers(std::span<const wire::PlanRow> rows, SlotRef slot, const MediaItem& item);

/// For one thread. A refused record changes nothing. Costs nothing while no sequence has media.
class MediaCheck {
 public:
  /// `frame_patches`: of the largest frame that can be encoded; 0: the model sees nothing.
  MediaCheck(const wire::Capacity& capacity, int frame_patches)
      : capacity_(capacity), frame_patches_(frame_patches) {}

  /// invalid_argument if the items do not lie in order within a sequence or have grids that cannot be; at
  /// most two generations of a slot are known at once.
  Status admit(const wire::RecordView& record, const wire::SequenceMedia& media);

  /// `bytes`: of the patches that were found. invalid_argument for an item that is not known or was asked for
  /// already, and for another number of bytes than its patches have.
  Status admit(const wire::EncodeMedia& command, std::uint64_t bytes);

  /// Before PlanCheck admits the plan: a row may cover an item only if it is to be encoded and no plan before
  /// has covered its last token, and items lie within their sequences' prompts.
  Status check(const wire::RecordView& record, const wire::StepPlan& plan) const;

  /// After it has: forgets the sequences that the plan finishes, and notes the items that it uses up.
  void admitted(const wire::RecordView& record, const wire::StepPlan& plan);

  struct Used {
    SlotRef slot{};
    int item = 0;
  };
  /// The items whose last tokens the plan's rows cover: no later row may need them. Valid until the next
  /// call.
  const std::vector<Used>& used(const wire::RecordView& record, const wire::StepPlan& plan);

  /// Of a sequence whose SequenceMedia was admitted and that no plan has finished; empty otherwise.
  const std::vector<MediaItem>& items(SlotRef slot) const;

  void reset() { known_.clear(); }

 private:
  enum class Stage : std::uint8_t { announced, asked, used };
  struct Known {
    std::vector<MediaItem> items;
    std::vector<Stage> stages;
  };

  const wire::Capacity capacity_;
  const int frame_patches_;
  std::map<SlotRef, Known> known_;
  std::vector<Used> used_;
};

}  // namespace troupe::model
