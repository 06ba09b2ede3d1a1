#pragma once
// What the vision encoder has made: the embeddings of items that sequences still need, and of some that they
// do not need any more.
#include <climits>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "base/ids.h"
#include "base/status.h"
#include "gpu/buffer.h"

namespace troupe::model {

/// Each output belongs to an item of a sequence from begin() to the item's last row, or to the end of the
/// sequence; how much that is in all, the engine limits. One that has been used up is kept under the name of
/// its contents: the least recently used go when they have more tokens than were allowed. Only what rows have
/// used is kept, as before that it may turn out that its patches had changed while they were read.
///
/// For one thread. The device outlives it.
template <Device D>
class EncoderOutputs {
 public:
  /// `row_bytes`: of a token. `kept_tokens`: of outputs that no sequence needs.
  EncoderOutputs(D& device, std::size_t row_bytes, std::int64_t kept_tokens)
      : device_(&device), row_bytes_(row_bytes), most_kept_(kept_tokens) {}

  struct Place {
    void* rows = nullptr;
    bool filled = false;  ///< an earlier output with the same name is there
  };
  /// The place of an item's output. `name`: of its contents; zero: it has none, and is not kept.
  Result<Place> begin(SlotRef slot, int item, std::int64_t tokens, const BlockHash& name) {
    Output output{{}, name, tokens};
    if (const auto kept = by_name_.find(name); kept != by_name_.end()) {
      output.buffer = kept->second->buffer;
      order_.splice(order_.begin(), order_, kept->second);
    } else {
      Result<Buffer<D>> made =
          Buffer<D>::make(*device_, static_cast<std::size_t>(tokens) * row_bytes_, "embeddings of an item");
      if (!made) return made.status();
      output.buffer = std::make_shared<Buffer<D>>(std::move(*made));
    }
    const bool filled = output.buffer.use_count() > 1;
    void* const rows = output.buffer->data();
    outputs_[{slot, item}] = std::move(output);
    return Place{rows, filled};
  }

  /// Row `first` of an output that is there.
  const std::byte* rows(SlotRef slot, int item, std::int32_t first) const {
    return static_cast<const std::byte*>(outputs_.at({slot, item}).buffer->data()) +
           static_cast<std::size_t>(first) * row_bytes_;
  }

  /// The item's last row has run. Nothing if the output is not there.
  void used(SlotRef slot, int item) {
    const auto node = outputs_.extract({slot, item});
    if (node.empty()) return;
    const BlockHash name = node.mapped().name;
    if (name == BlockHash{} || node.mapped().tokens > most_kept_ || by_name_.contains(name)) return;
    order_.push_front(std::move(node.mapped()));
    by_name_[name] = order_.begin();
    kept_ += order_.front().tokens;
    while (kept_ > most_kept_) {
      kept_ -= order_.back().tokens;
      by_name_.erase(order_.back().name);
      order_.pop_back();
    }
  }

  /// The sequence has left its slot.
  void drop(SlotRef slot) {
    outputs_.erase(outputs_.lower_bound({slot, 0}), outputs_.upper_bound({slot, INT_MAX}));
  }
  /// All have. What is kept stays.
  void drop_all() { outputs_.clear(); }

  std::int64_t kept_tokens() const { return kept_; }

 private:
  struct Output {
    std::shared_ptr<Buffer<D>> buffer;
    BlockHash name{};
    std::int64_t tokens = 0;
  };

  D* device_;
  std::size_t row_bytes_;
  std::int64_t most_kept_;
  std::int64_t kept_ = 0;
  std::map<std::pair<SlotRef, int>, Output> outputs_;
  std::list<Output> order_;  // kept ones, the last used first
  std::map<BlockHash, typename std::list<Output>::iterator> by_name_;
};

}  // namespace troupe::model
