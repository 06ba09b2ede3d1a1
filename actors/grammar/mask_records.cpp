#include "actors/grammar/mask_records.h"

#include <algorithm>

namespace troupe {
namespace {

wire::MaskForm form_of(grammar::TokenMask::Form form) {
  switch (form) {
    case grammar::TokenMask::Form::all: return wire::MaskForm::all;
    case grammar::TokenMask::Form::bits: return wire::MaskForm::bits;
    case grammar::TokenMask::Form::allowed: return wire::MaskForm::allowed;
    case grammar::TokenMask::Form::denied: return wire::MaskForm::denied;
  }
  return wire::MaskForm::all;
}

class Writer {
 public:
  Writer(std::uint32_t epoch, const std::function<void(std::span<const std::byte>)>& send)
      : epoch_(epoch), send_(send) {}

  void add(const ReadyRow& row, const grammar::TokenMask& mask, std::size_t more,
           std::span<const TokenId> forced = {}) {
    const std::size_t bytes = mask.words.size() * sizeof(std::uint32_t) + forced.size_bytes() +
                              2 * wire::kAlignment + sizeof(wire::RowMask);
    if (open_ && (row.step != step_ || size_ + bytes > kMaxMaskRecordBytes)) close();
    if (!open_) {
      open_ = true;
      step_ = row.step;
      size_ = sizeof(wire::StepMasks) + wire::kAlignment;
      record_.begin(epoch_);
    }
    size_ += bytes;
    rows_.push_back({.slot = row.slot,
                     .form = form_of(mask.form),
                     .words = record_.array(mask.words),
                     .more = static_cast<std::uint32_t>(more),
                     .forced = record_.array(forced)});
  }

  void close() {
    if (!open_) return;
    open_ = false;
    const auto rows = record_.array(rows_);
    record_.record().step = step_;
    record_.record().rows = rows;
    rows_.clear();
    send_(record_.finish());
  }

 private:
  const std::uint32_t epoch_;
  const std::function<void(std::span<const std::byte>)>& send_;
  wire::RecordWriter<wire::StepMasks> record_;
  std::vector<wire::RowMask> rows_;
  std::uint64_t step_ = 0;
  std::size_t size_ = 0;
  bool open_ = false;
};

}  // namespace

void write_masks(std::uint32_t epoch, std::span<const ReadyRow> rows,
                 const std::function<void(std::span<const std::byte>)>& send) {
  static const grammar::TokenMask all;
  Writer writer(epoch, send);
  for (const ReadyRow& row : rows) {
    if (row.mask != ReadyRow::Mask::made) {
      writer.add(row, all, 0);
      continue;
    }
    const Follower& follower = *row.follower;
    // A mask that was made late may have others behind it, for which the row that asks again has no place.
    const std::size_t made = 1 + follower.ahead.masks.size(), masks = std::min(row.places, made);
    for (std::size_t i = 0; i < masks; ++i) {
      const grammar::TokenMask& mask = i == 0 ? follower.mask : follower.ahead.masks[i - 1];
      const bool forces = i + 1 == made && i >= row.free;
      writer.add(row, i < row.free ? all : mask, masks - 1 - i,
                 forces ? std::span(follower.ahead.forced) : std::span<const TokenId>{});
    }
  }
  writer.close();
}

}  // namespace troupe
