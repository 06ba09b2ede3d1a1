#pragma once
// The part of the worker model that encodes images: checks what it is told, and that rows have what they
// need.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/messages.h"
#include "ipc/wire.h"

namespace troupe::test {

class EncoderModel {
 public:
  void begin(std::uint32_t epoch, std::int32_t tokens) {
    epoch_ = epoch;
    tokens_ = tokens;
  }

  /// A SequenceMedia or an EncodeMedia.
  void receive(std::span<const std::byte> record) {
    wire::RecordView view;
    if (!wire::RecordView::open(record, view) || view.header().epoch != epoch_) return complain("no record");
    if (const auto* media = view.as<wire::SequenceMedia>()) {
      std::vector<MediaItem> items;
      for (const wire::MediaEntry& entry : view.array(media->items)) {
        items.push_back(
            {static_cast<MediaKind>(entry.kind), {entry.frames, entry.rows, entry.columns}, entry.first});
      }
      if (!known_.emplace(media->slot, std::move(items)).second) complain("items are announced twice");
      return;
    }
    const auto* command = view.as<wire::EncodeMedia>();
    if (command == nullptr || !known_.contains(command->slot)) return complain("no item to encode");
    outputs_[{command->slot, command->item}] = {command->place.generation, false};
    queue_.push_back({*command, false});
    if (held() > tokens_) complain("more encoder output than there is memory for");
  }

  bool knows(SlotRef slot) const { return known_.contains(slot); }

  /// A plan starts the sequence. Returns its items.
  std::vector<SequenceItem> start(SlotRef slot, const RequestKey& key) {
    const auto found = expected.find(key);
    const std::vector<SequenceItem> items =
        found == expected.end() ? std::vector<SequenceItem>{} : found->second;
    if (items.empty()) return items;
    if (!known_.contains(slot)) return complain("items are not announced before the start"), items;
    const std::vector<MediaItem>& known = known_.at(slot);
    const auto same = [](const SequenceItem& one, const MediaItem& other) { return one.item == other; };
    if (!std::equal(items.begin(), items.end(), known.begin(), known.end(), same))
      complain("other items are announced");
    return items;
  }

  /// A plan finishes the sequence.
  void finish(SlotRef slot) {
    known_.erase(slot);
    std::erase_if(outputs_, [&](const auto& one) { return one.first.first == slot; });
    for (auto& [command, dropped] : queue_) dropped = dropped || command.slot == slot;
  }

  /// Positions [position, end) of the slot are run.
  void run(SlotRef slot, std::span<const SequenceItem> items, std::int32_t position, std::int32_t end) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const MediaItem& item = items[i].item;
      if (item.end() <= position || item.first >= end) continue;
      const auto output = outputs_.find({slot, static_cast<std::int32_t>(i)});
      if (output == outputs_.end() || !output->second.ready)
        return complain("a row of an item without output");
      if (output->second.contents != items[i].contents.lo) return complain("the output of another item");
      if (item.end() <= end) outputs_.erase(output);
    }
  }

  /// Encodes the oldest item; false when there is none. `fails`: its patches are gone.
  bool encode(bool fails, std::vector<std::byte>& done) {
    if (queue_.empty()) return false;
    const auto [command, dropped] = queue_.front();
    queue_.pop_front();
    wire::RecordWriter<wire::MediaDone> writer;
    writer.begin(epoch_);
    writer.record().slot = command.slot;
    writer.record().item = command.item;
    writer.record().dropped = dropped ? 1 : 0;
    writer.record().failed = fails ? 1 : 0;
    if (!dropped) outputs_[{command.slot, command.item}].ready = !fails;
    const std::span<const std::byte> bytes = writer.finish();
    done.assign(bytes.begin(), bytes.end());
    return true;
  }

  const std::string& complaint() const { return complaint_; }

  std::map<RequestKey, std::vector<SequenceItem>> expected;  ///< the items of each sequence

 private:
  struct Output {
    std::uint64_t contents = 0;
    bool ready = false;
  };

  void complain(const std::string& what) {
    if (complaint_.empty()) complaint_ = what;
  }
  std::int32_t held() const {
    std::int64_t sum = 0;
    for (const auto& [place, output] : outputs_)
      sum += known_.at(place.first)[static_cast<std::size_t>(place.second)].grid.tokens();
    return static_cast<std::int32_t>(sum);
  }

  std::uint32_t epoch_ = 0;
  std::int32_t tokens_ = 0;
  std::map<SlotRef, std::vector<MediaItem>> known_;  // the items
  std::map<std::pair<SlotRef, std::int32_t>, Output> outputs_;
  std::deque<std::pair<wire::EncodeMedia, bool>> queue_;  // and whether its sequence was finished
  std::string complaint_;
};

}  // namespace troupe::test
