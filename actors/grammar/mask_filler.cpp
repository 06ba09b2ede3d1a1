#include "actors/grammar/mask_filler.h"

#include <algorithm>

namespace troupe {
namespace {

constexpr std::size_t kRowsWorthHelp = 4;  // waking a thread takes about as long as one mask

}  // namespace

MaskFiller::MaskFiller(unsigned helpers) {
  for (unsigned i = 0; i < helpers; ++i) {
    helpers_.emplace_back([this](const std::stop_token& stop) { help(stop); });
  }
}

MaskFiller::~MaskFiller() {
  for (std::jthread& helper : helpers_) helper.request_stop();
}

std::span<const grammar::TokenMask> MaskFiller::fill(std::span<const ReadyRow> rows) {
  if (masks_.size() < rows.size()) masks_.resize(rows.size());
  next_ = 0;
  const bool helped = !helpers_.empty() && rows.size() >= kRowsWorthHelp;
  if (helped) {
    {
      const std::lock_guard lock(mutex_);
      rows_ = rows;
      ++round_;
    }
    begin_.notify_all();
  }
  work(rows);
  if (helped) {
    std::unique_lock lock(mutex_);
    rows_ = {};  // a helper that wakes only here finds nothing to do
    end_.wait(lock, [this] { return busy_ == 0; });
  }
  return {masks_.data(), rows.size()};
}

void MaskFiller::help(const std::stop_token& stop) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (begin_.wait(lock, stop, [&] { return round_ != seen; })) {
    seen = round_;
    const std::span<const ReadyRow> rows = rows_;
    if (rows.empty()) continue;
    ++busy_;
    lock.unlock();
    work(rows);
    lock.lock();
    if (--busy_ == 0) end_.notify_one();
  }
}

void MaskFiller::work(std::span<const ReadyRow> rows) {
  for (std::size_t i = next_++; i < rows.size(); i = next_++) {
    grammar::TokenMask& mask = masks_[i];
    if (rows[i].constraint != nullptr) {
      rows[i].constraint->mask(mask);
    } else {
      mask.form = grammar::TokenMask::Form::all;
      mask.words.clear();
    }
  }
}

}  // namespace troupe
