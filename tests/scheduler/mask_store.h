#pragma once
// The part of the worker model that keeps masks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "ipc/wire.h"

namespace troupe::test {

struct RowMasks {
  std::vector<std::vector<std::uint32_t>> words;  ///< of each; none: all tokens are allowed
  std::uint32_t more = 0;                         ///< that are still to come
};

class MaskStore {
 public:
  /// A plan has come: its gated rows wait.
  void expect(std::span<const std::byte> plan) {
    wire::RecordView view;
    if (!wire::RecordView::open(plan, view) || view.as<wire::StepPlan>() == nullptr) return;
    for (const wire::PlanRow& row : view.array(view.as<wire::StepPlan>()->rows)) {
      if ((row.flags & wire::kGated) != 0) rows_[view.as<wire::StepPlan>()->step].insert(row.slot);
    }
  }

  void take(const wire::RecordView& view, const wire::StepMasks& masks) {
    for (const wire::RowMask& mask : view.array(masks.rows)) {
      if (!rows_[masks.step].contains(mask.slot)) complain("a mask for no gated row in flight");
      const std::span<const std::uint32_t> words = view.array(mask.words);
      RowMasks& row = masks_[{masks.step, mask.slot.slot}];
      if (!row.words.empty() && mask.more + 1 != row.more)
        complain("a mask comes twice, or others were said");
      row.words.emplace_back(words.begin(), words.end());
      row.more = mask.more;
    }
  }

  /// True while a row of the step lacks a mask.
  bool waits(std::uint64_t step) const {
    const auto rows = rows_.find(step);
    return rows != rows_.end() && std::ranges::any_of(rows->second, [&](SlotRef slot) {
             const RowMasks* row = find(step, slot);
             return row == nullptr || row->more > 0;
           });
  }
  /// Null: none has come.
  const RowMasks* find(std::uint64_t step, SlotRef slot) const {
    const auto found = masks_.find({step, slot.slot});
    return found == masks_.end() ? nullptr : &found->second;
  }
  /// The steps up to this one have run.
  void forget(std::uint64_t step) {
    rows_.erase(rows_.begin(), rows_.upper_bound(step));
    masks_.erase(masks_.begin(), masks_.upper_bound({step, UINT32_MAX}));
  }

  const std::string& complaint() const { return complaint_; }

 private:
  void complain(const std::string& what) {
    if (complaint_.empty()) complaint_ = what;
  }

  std::map<std::uint64_t, std::set<SlotRef>> rows_;                    ///< gated ones, by step
  std::map<std::pair<std::uint64_t, std::uint32_t>, RowMasks> masks_;  ///< by step and slot
  std::string complaint_;
};

}  // namespace troupe::test
