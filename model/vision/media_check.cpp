#include "model/vision/media_check.h"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe::model {
namespace {

std::string name_of(SlotRef slot) {
  return "slot " + std::to_string(slot.slot) + ", generation " + std::to_string(slot.generation) + ": ";
}

}  // namespace

bool covers(std::span<const wire::PlanRow> rows, SlotRef slot, const MediaItem& item) {
  return std::ranges::any_of(rows, [&](const wire::PlanRow& row) {
    return row.slot == slot && row.position < item.end() && row.position + row.tokens > item.first;
  });
}

Status MediaCheck::admit(const wire::RecordView& record, const wire::SequenceMedia& media) {
  const std::string where = name_of(media.slot);
  if (frame_patches_ == 0) return invalid(where + "the model takes no images or videos");
  if (media.slot.slot >= static_cast<std::uint32_t>(capacity_.max_slots))
    return invalid(where + "no such slot");
  if (!record.holds(media.items) || media.items.count == 0) {
    return invalid(where + "its items lie outside the record, or there are none");
  }
  const auto of_slot = [&](const auto& known) { return known.first.slot == media.slot.slot; };
  if (known_.contains(media.slot)) return invalid(where + "its media have come already");
  if (std::ranges::count_if(known_, of_slot) >= 2) {
    return failure(Code::overloaded, where + "media of two generations are known already");
  }
  Known made;
  std::int64_t end = 0;
  for (const wire::MediaEntry& entry : record.array(media.items)) {
    const MediaItem item{
        static_cast<MediaKind>(entry.kind), {entry.frames, entry.rows, entry.columns}, entry.first};
    // The product of three numbers of a record fits once the first two have been looked at.
    const bool fits =
        can_be(entry.kind == 1 || entry.kind == 2 ? item.kind : MediaKind{}, item.grid, frame_patches_) &&
        entry.frames <= capacity_.max_model_len && entry.first >= end &&
        entry.first + item.grid.tokens() <= capacity_.max_model_len;
    if (!fits) {
      return invalid(where + "item " + std::to_string(made.items.size()) + " of kind " +
                     std::to_string(entry.kind) + " with " + std::to_string(entry.frames) + " × " +
                     std::to_string(entry.rows) + " × " + std::to_string(entry.columns) + " patches at " +
                     std::to_string(entry.first) + " cannot be");
    }
    end = item.end();
    made.items.push_back(item);
  }
  made.stages.resize(made.items.size());
  known_.emplace(media.slot, std::move(made));
  return {};
}

Status MediaCheck::admit(const wire::EncodeMedia& command, std::uint64_t bytes) {
  const std::string where = name_of(command.slot) + "item " + std::to_string(command.item) + " ";
  const auto found = known_.find(command.slot);
  const auto index = static_cast<std::size_t>(command.item);
  if (found == known_.end() || command.item < 0 || index >= found->second.items.size()) {
    return invalid(where + "is not known");
  }
  if (found->second.stages[index] != Stage::announced) return invalid(where + "was to be encoded already");
  const auto right = static_cast<std::uint64_t>(found->second.items[index].grid.patches()) * kPatchBytes;
  if (bytes != right) {
    return invalid(where + "has patches of " + std::to_string(right) + " bytes; " + std::to_string(bytes) +
                   " were found");
  }
  found->second.stages[index] = Stage::asked;
  return {};
}

Status MediaCheck::check(const wire::RecordView& record, const wire::StepPlan& plan) const {
  if (known_.empty()) return {};
  for (const wire::StartSequence& start : record.array(plan.started)) {
    const std::vector<MediaItem>& of = items(start.slot);
    if (of.empty() || of.back().end() <= start.prompt_tokens) continue;
    return invalid(name_of(start.slot) + "an item ends at " + std::to_string(of.back().end()) +
                   ", the prompt at " + std::to_string(start.prompt_tokens));
  }
  for (const wire::PlanRow& row : record.array(plan.rows)) {
    const auto found = known_.find(row.slot);
    if (found == known_.end()) continue;
    for (std::size_t i = 0; i < found->second.items.size(); ++i) {
      const MediaItem& item = found->second.items[i];
      const bool covers = row.position < item.end() && std::int64_t{row.position} + row.tokens > item.first;
      if (covers && found->second.stages[i] != Stage::asked) {
        return invalid(name_of(row.slot) + "a row covers item " + std::to_string(i) +
                       (found->second.stages[i] == Stage::used ? ", which was used up"
                                                               : ", which was not to be encoded"));
      }
    }
  }
  return {};
}

void MediaCheck::admitted(const wire::RecordView& record, const wire::StepPlan& plan) {
  if (known_.empty()) return;
  for (const SlotRef slot : record.array(plan.finished)) known_.erase(slot);
  for (const auto& [slot, item] : used(record, plan)) {
    known_.at(slot).stages[static_cast<std::size_t>(item)] = Stage::used;
  }
}

const std::vector<MediaCheck::Used>& MediaCheck::used(const wire::RecordView& record,
                                                      const wire::StepPlan& plan) {
  used_.clear();
  if (known_.empty()) return used_;
  for (const wire::PlanRow& row : record.array(plan.rows)) {
    const std::vector<MediaItem>& of = items(row.slot);
    for (std::size_t i = 0; i < of.size(); ++i) {
      const std::int32_t last = of[i].end() - 1;
      if (row.position <= last && last < row.position + row.tokens)
        used_.push_back({row.slot, static_cast<int>(i)});
    }
  }
  return used_;
}

const std::vector<MediaItem>& MediaCheck::items(SlotRef slot) const {
  static const std::vector<MediaItem> kNone;
  const auto found = known_.find(slot);
  return found == known_.end() ? kNone : found->second.items;
}

}  // namespace troupe::model
