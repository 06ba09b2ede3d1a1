#include "model/step_gates.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "kernels/sample.h"

namespace troupe::model {

std::size_t StepGates::most_masks(const wire::Capacity& capacity) {
  return static_cast<std::size_t>(
      std::max(capacity.max_slots, capacity.max_proposed > 0 ? capacity.max_sampled : 0));
}

StepGates::StepGates(const wire::Capacity& capacity, std::span<std::uint32_t> memory)
    : vocab_(static_cast<std::uint32_t>(std::max(0, capacity.vocab_size))),
      words_(kernels::mask_words(capacity.vocab_size)),
      places_(most_masks(capacity)),
      most_forced_(static_cast<std::size_t>(1 + std::max(0, capacity.max_proposed))),
      gates_(static_cast<std::size_t>(capacity.max_steps_in_flight) + 1),
      memory_(memory) {
  TROUPE_CHECK(memory.empty() || memory.size() >= memory_words(capacity));
}

std::size_t StepGates::memory_words(const wire::Capacity& capacity) {
  return (static_cast<std::size_t>(capacity.max_steps_in_flight) + 1) * most_masks(capacity) *
         kernels::mask_words(capacity.vocab_size);
}

const StepGates::Gate& StepGates::at(std::uint64_t step) const {
  const Gate& gate = gates_[step % gates_.size()];
  TROUPE_CHECK(gate.is_open && gate.step == step);
  return gate;
}

void StepGates::open(const wire::RecordView& record, const wire::StepPlan& plan) {
  Gate& gate = gates_[plan.step % gates_.size()];
  TROUPE_CHECK(!gate.is_open);
  gate.step = plan.step;
  gate.is_open = true;
  gate.rows.clear();
  gate.forced.clear();
  gate.places = 0;
  for (const wire::PlanRow& row : record.array(plan.rows)) {
    if ((row.flags & wire::kGated) == 0) continue;
    const std::int32_t most = (row.flags & wire::kFromLast) != 0 ? row.tokens : 1;
    gate.rows.push_back({.slot = row.slot, .first = gate.places, .most = most});
    gate.places += static_cast<std::size_t>(most);
  }
  TROUPE_CHECK(gate.places <= places_);
  gate.missing = gate.rows.size();
  if (gate.missing == 0 || !memory_.empty()) return;
  own_.resize(gates_.size() * places_ * words_);
  memory_ = own_;
}

std::span<std::uint32_t> StepGates::bits_of(const Gate& gate, std::size_t place) const {
  const auto index = static_cast<std::size_t>(&gate - gates_.data());
  return memory_.subspan((index * places_ + place) * words_, words_);
}

std::int32_t StepGates::count(std::uint64_t step, std::size_t row) const {
  const Gate& gate = at(step);
  TROUPE_CHECK(row < gate.rows.size() && gate.rows[row].has.complete());
  return gate.rows[row].has.count;
}

std::int32_t StepGates::place(std::uint64_t step, std::size_t index, std::int32_t which) const {
  TROUPE_CHECK(which < count(step, index));
  const Row& row = at(step).rows[index];
  return (row.all >> which & 1) != 0 ? -1 : static_cast<std::int32_t>(row.first) + which;
}

const std::uint32_t* StepGates::mask(std::uint64_t step, std::size_t index, std::int32_t which) const {
  const std::int32_t place = this->place(step, index, which);
  return place < 0 ? nullptr : bits_of(at(step), static_cast<std::size_t>(place)).data();
}

std::span<const TokenId> StepGates::forced(std::uint64_t step, std::size_t row) const {
  const Gate& gate = at(step);
  TROUPE_CHECK(row < gate.rows.size());
  return std::span(gate.forced).subspan(gate.rows[row].first_forced, gate.rows[row].forced);
}

std::span<const std::uint32_t> StepGates::masks(std::uint64_t step) const {
  const Gate& gate = at(step);
  if (gate.rows.empty()) return {};
  return {bits_of(gate, 0).data(), gate.places * words_};
}

/// The slot's row, or null. Looked for from `hint` on, which becomes the one after: masks mostly come in plan
/// order.
StepGates::Row* StepGates::find(Gate& gate, SlotRef slot, std::size_t& hint) const {
  for (std::size_t i = 0; i < gate.rows.size(); ++i) {
    const std::size_t index = (hint + i) % gate.rows.size();
    if (gate.rows[index].slot != slot) continue;
    hint = index + 1;
    return &gate.rows[index];
  }
  return nullptr;
}

Status StepGates::take(const wire::RecordView& record, const wire::StepMasks& masks) {
  Gate& gate = gates_[masks.step % gates_.size()];
  const std::string where = "masks of step " + std::to_string(masks.step);
  if (!gate.is_open || gate.step != masks.step) return invalid(where + ": it is not in flight");
  if (!record.holds(masks.rows)) return invalid(where + " lie outside their record");
  Status status;
  std::size_t hint = 0;
  for (const wire::RowMask& mask : record.array(masks.rows)) {
    status = check(record, mask, find(gate, mask.slot, hint));
    if (status.ok()) continue;
    status.message = where + ", slot " + std::to_string(mask.slot.slot) + " generation " +
                     std::to_string(mask.slot.generation) + ": " + status.message;
    break;
  }
  for (Row& row : gate.rows) row.checked = status.ok() ? row.checked : row.has;
  if (!status.ok()) return status;
  hint = 0;
  for (const wire::RowMask& mask : record.array(masks.rows)) {
    Row& row = *find(gate, mask.slot, hint);
    const std::int32_t index = row.has.count;
    note(row, mask, row.has);
    if (mask.form == wire::MaskForm::all) {
      row.all |= 1u << index;
    } else {
      expand(mask.form, record.array(mask.words), bits_of(gate, row.first + static_cast<std::size_t>(index)));
    }
    const std::span<const TokenId> forced = record.array(mask.forced);
    row.first_forced = gate.forced.size();
    row.forced = forced.size();
    gate.forced.insert(gate.forced.end(), forced.begin(), forced.end());
    gate.missing -= row.has.complete() ? 1 : 0;
  }
  return {};
}

/// False if the row's next mask may not say so many others.
bool StepGates::note(const Row& row, const wire::RowMask& mask, Progress& progress) {
  const bool fits = progress.more < 0 ? mask.more < static_cast<std::uint32_t>(row.most)
                                      : mask.more + 1 == static_cast<std::uint32_t>(progress.more);
  if (!fits) return false;
  ++progress.count;
  progress.more = static_cast<std::int32_t>(mask.more);
  return true;
}

Status StepGates::check(const wire::RecordView& record, const wire::RowMask& mask, Row* row) const {
  if (row == nullptr) return invalid("no gated row");
  if (row->checked.complete()) return invalid("a second mask");
  if (!note(*row, mask, row->checked)) {
    return invalid(std::to_string(mask.more) + " more masks, behind " + std::to_string(row->checked.count) +
                   " of " + std::to_string(row->most) + " at most");
  }
  if (!record.holds(mask.words)) return invalid("words outside the record");
  if (!record.holds(mask.forced)) return invalid("forced tokens outside the record");
  if (Status s = check_forced(record.array(mask.forced), mask.more == 0); !s.ok()) return s;
  return check_words(mask.form, record.array(mask.words));
}

Status StepGates::check_forced(std::span<const TokenId> ids, bool is_last) const {
  if (!is_last && !ids.empty()) return invalid("forced tokens beside a mask that others follow");
  if (ids.size() > most_forced_) {
    return invalid(std::to_string(ids.size()) + " forced tokens; at most " + std::to_string(most_forced_) +
                   " can be used");
  }
  for (const TokenId id : ids) {
    if (id < 0 || static_cast<std::uint32_t>(id) >= vocab_)
      return invalid("forced token " + std::to_string(id) + " is outside the vocabulary");
  }
  return {};
}

Status StepGates::check_words(wire::MaskForm form, std::span<const std::uint32_t> words) const {
  const std::string count = std::to_string(words.size());
  switch (form) {
    case wire::MaskForm::all:
      return words.empty() ? Status{} : invalid(count + " words beside a mask that allows everything");
    case wire::MaskForm::bits: {
      if (words.size() != words_)
        return invalid(count + " words of bits; there must be " + std::to_string(words_));
      const std::uint32_t last = words.back() & (vocab_ % 32 == 0 ? ~0u : (1u << vocab_ % 32) - 1);
      const auto any = [](std::uint32_t word) { return word != 0; };
      if (last != 0 || std::any_of(words.begin(), words.end() - 1, any)) return {};
      return invalid("no token is allowed");
    }
    case wire::MaskForm::allowed:
    case wire::MaskForm::denied: {
      for (std::size_t i = 0; i < words.size(); ++i) {
        if (words[i] >= vocab_) {
          return invalid("id " + std::to_string(words[i]) + " is not below " + std::to_string(vocab_));
        }
        if (i > 0 && words[i] <= words[i - 1]) {
          return invalid("id " + std::to_string(words[i]) + " follows id " + std::to_string(words[i - 1]));
        }
      }
      const bool none = form == wire::MaskForm::allowed ? words.empty() : words.size() == vocab_;
      return none ? invalid("no token is allowed") : Status{};
    }
  }
  return invalid("form " + std::to_string(static_cast<unsigned>(form)) + " is not known");
}

void StepGates::expand(wire::MaskForm form, std::span<const std::uint32_t> words,
                       std::span<std::uint32_t> bits) const {
  if (form == wire::MaskForm::bits) {
    std::copy(words.begin(), words.end(), bits.begin());
    return;
  }
  const bool allowed = form == wire::MaskForm::allowed;
  std::fill(bits.begin(), bits.end(), allowed ? 0 : ~0u);
  for (const std::uint32_t id : words) bits[id / 32] ^= 1u << id % 32;
}

void StepGates::reset() {
  for (Gate& gate : gates_) gate.is_open = false;
}

}  // namespace troupe::model
