#include "actors/scheduler/media_work.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

std::int32_t tokens_of(const SequenceItem& item) { return item.item.end() - item.item.first; }

std::int32_t largest(std::span<const SequenceItem> items) {
  std::int32_t most = 0;
  for (const SequenceItem& item : items) most = std::max(most, tokens_of(item));
  return most;
}

std::int32_t count(std::span<const SequenceItem> items) { return static_cast<std::int32_t>(items.size()); }

}  // namespace

std::size_t announcement_bytes(const ScheduledSequence& s) {
  if (s.media.announced || s.media.items == nullptr) return 0;
  return sizeof(wire::SequenceMedia) + s.media.items->size() * sizeof(wire::MediaEntry);
}

void MediaWork::attach(std::uint32_t epoch, std::int32_t tokens) {
  epoch_ = epoch;
  budget_ = tokens;
}

void MediaWork::worker_lost() {
  epoch_ = 0;
  held_ = leaving_ = 0;
  out_.clear();
  records_.clear();
}

bool MediaWork::reserve(ScheduledSequence& s, bool forks) {
  const std::int32_t most = forks ? 0 : largest(s.media.list());
  if (held_ + most > budget_ && most > 0) return false;
  s.media.reserved = most;
  held_ += most;
  return true;
}

void MediaWork::give_back(ScheduledSequence& s) { held_ -= std::exchange(s.media.reserved, 0); }

void MediaWork::begin(ScheduledSequence& s) {
  const std::span<const SequenceItem> items = s.media.list();
  if (items.empty()) return;
  const auto first =
      std::ranges::find_if(items, [&](const auto& item) { return item.item.end() > s.planned; });
  s.media.asked = s.media.ready = s.media.used = static_cast<std::int32_t>(first - items.begin());
  s.media.note_ready();
  settle(s);
}

/// Reserves what is held, and at least what the largest item that is still to be encoded needs.
void MediaWork::settle(ScheduledSequence& s) {
  const std::int32_t needed =
      std::max(s.media.held, largest(s.media.list().subspan(static_cast<std::size_t>(s.media.asked))));
  held_ += needed - s.media.reserved;
  s.media.reserved = needed;
}

void MediaWork::advanced(ScheduledSequence& s) {
  const std::span<const SequenceItem> items = s.media.list();
  const std::int32_t before = s.media.used;
  while (s.media.used < s.media.ready) {
    const SequenceItem& item = items[static_cast<std::size_t>(s.media.used)];
    if (item.item.end() > s.committed) break;
    s.media.held -= tokens_of(item);
    ++s.media.used;
  }
  if (s.media.used != before) settle(s);
}

void MediaWork::leave(ScheduledSequence& s, bool finished) {
  if (finished) {
    leaving_ += std::exchange(s.media.reserved, 0);
  } else {
    give_back(s);
  }
}

bool MediaWork::fits(const ScheduledSequence& s, std::int32_t more) const {
  return held_ + std::max(0, s.media.held + more - s.media.reserved) <= budget_;
}

void MediaWork::ask(const std::vector<std::uint32_t>& running, std::uint32_t isolated) {
  if (held_ == 0) return;  // a sequence with an item to be encoded has a reservation
  if (isolated != kNoSequence && !has_only(isolated)) return;
  for (const bool awaited : {true, false}) {
    for (const std::uint32_t i : running) {
      if (out_.size() >= kMostInFlight) return;
      const ScheduledSequence& s = table_[i];
      if (s.media.items == nullptr || s.held || (isolated != kNoSequence && i != isolated)) continue;
      while (s.media.asked < count(s.media.list()) && (s.media.asked == s.media.ready) == awaited &&
             out_.size() < kMostInFlight &&
             fits(s, tokens_of(s.media.list()[static_cast<std::size_t>(s.media.asked)]))) {
        ask_next(i);
      }
    }
  }
}

void MediaWork::ask_next(std::uint32_t sequence) {
  ScheduledSequence& s = table_[sequence];
  announce(s);
  const SequenceItem& item = s.media.list()[static_cast<std::size_t>(s.media.asked)];
  order_.begin(epoch_);
  order_.record().slot = s.slot;
  order_.record().item = s.media.asked;
  order_.record().front = s.front;
  order_.record().place = item.place;
  order_.record().name = names_.name_item(s, item);
  const std::span<const std::byte> bytes = order_.finish();
  records_.emplace_back(bytes.begin(), bytes.end());
  out_.push_back({s.slot, s.media.asked, sequence});
  s.media.held += tokens_of(item);
  ++s.media.asked;
  ++s.media.encodes_out;
  settle(s);
}

void MediaWork::announce(ScheduledSequence& s) {
  if (s.media.items == nullptr || s.media.announced) return;
  std::vector<wire::MediaEntry> entries;
  for (const SequenceItem& item : s.media.list()) {
    const PatchGrid& grid = item.item.grid;
    entries.push_back({static_cast<std::uint32_t>(item.item.kind), grid.frames, grid.rows, grid.columns,
                       item.item.first, 0});
  }
  announcement_.begin(epoch_);
  const auto items = announcement_.array(entries);
  announcement_.record().slot = s.slot;
  announcement_.record().items = items;
  const std::span<const std::byte> bytes = announcement_.finish();
  records_.emplace_back(bytes.begin(), bytes.end());
  s.media.announced = true;
}

bool MediaWork::has_only(std::uint32_t sequence) const {
  return std::ranges::all_of(out_, [&](const Out& out) { return out.slot == table_[sequence].slot; });
}

std::int32_t MediaWork::plan_made() { return std::exchange(leaving_, 0); }

bool MediaWork::take(std::vector<std::vector<std::byte>>& records) {
  records.clear();
  records.swap(records_);
  return !records.empty();
}

MediaWork::Ended MediaWork::done(std::span<const std::byte> bytes) {
  wire::RecordView view;
  const wire::MediaDone* const record =
      wire::RecordView::open(bytes, view) ? view.as<wire::MediaDone>() : nullptr;
  if (record == nullptr) return {Verdict::malformed};
  if (epoch_ == 0 || record->header.epoch != epoch_) return {};
  const auto out = std::ranges::find_if(
      out_, [&](const Out& one) { return one.slot == record->slot && one.item == record->item; });
  if (out == out_.end()) return {Verdict::malformed};
  const std::uint32_t sequence = out->sequence;
  out_.erase(out);
  ScheduledSequence& s = table_[sequence];
  if (!s.live || s.slot != record->slot) return {};
  --s.media.encodes_out;
  if (record->dropped != 0) return {Verdict::malformed};  // it has its slot
  if (record->failed != 0) return {Verdict::failed, sequence, 0};
  if (record->item != s.media.ready) return {Verdict::malformed};
  ++s.media.ready;
  s.media.note_ready();
  const std::int64_t ns = std::max<std::int64_t>(0, record->finished_ns - record->started_ns);
  return {Verdict::encoded, sequence, 1e-9 * static_cast<double>(ns), record->cached != 0};
}

}  // namespace troupe
