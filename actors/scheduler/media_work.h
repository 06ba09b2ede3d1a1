#pragma once
// Images and videos of sequences: which are to be encoded when, and how much encoder output they hold.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/scheduler/prefix_names.h"
#include "actors/scheduler/sequence_table.h"
#include "ipc/wire.h"

namespace troupe {

/// A row's embeddings of an item come from the worker's encoder. An item is encoded once for each time that
/// its sequence enters a slot, unless its positions were found in the prefix cache; rows before it run
/// meanwhile (ScheduledSequence::remaining()). Items are encoded in the order of the sequences' admission,
/// first those that a row waits for; few are in flight, since a sequence that comes first, and one that ends,
/// should not wait for many of others.
///
/// The worker has memory for the output of so many tokens. Every admitted sequence has reserved as much as
/// its largest item needs, so each can always go on; what is not reserved serves whoever has more items to
/// come. A reservation ends when the last item was used, or when the worker has been told that the sequence
/// has left its slot.
class MediaWork {
 public:
  static constexpr std::size_t kMostInFlight = 4;
  /// Of a prompt: a SequenceMedia takes a small part of a record, and so of the ring, which has to hold those
  /// of all items in flight beside the plans.
  static constexpr std::size_t kMostItems = 4096;

  /// Borrows both.
  MediaWork(ScheduledSequences& table, const PrefixNames& names) : table_(table), names_(names) {}

  /// A new worker that holds the output of `tokens`.
  void attach(std::uint32_t epoch, std::int32_t tokens);
  /// The worker is lost: nothing is in flight, and nothing is held.
  void worker_lost();

  // ---------------------------------------------------------------- a sequence's life

  /// For a sequence that asks for admission: reserves what its largest item needs. False when it has to wait.
  /// `forks`: it begins behind all items.
  bool reserve(ScheduledSequence& sequence, bool forks);
  /// It is not admitted.
  void give_back(ScheduledSequence& sequence);
  /// It has its slot and begins at ScheduledSequence::planned: items before it are not needed.
  void begin(ScheduledSequence& sequence);
  /// A step has come back, and ScheduledSequence::committed has risen.
  void advanced(ScheduledSequence& sequence);
  /// It leaves its slot, of which the next plan tells the worker if `finished`.
  void leave(ScheduledSequence& sequence, bool finished);

  // ------------------------------------------------------------------- plans

  /// Asks for the items to be encoded next. `isolated`: the sequence that must be alone on the worker, or
  /// kNoSequence.
  void ask(const std::vector<std::uint32_t>& running, std::uint32_t isolated);
  /// A plan starts the sequence: the worker must know its items before. Once for each slot, and nothing for
  /// one without media.
  void announce(ScheduledSequence& sequence);
  /// True if no item of another sequence is being encoded.
  bool has_only(std::uint32_t sequence) const;
  /// True if a plan with finished slots alone is worth sending: they hold encoder output, or are being
  /// encoded for.
  bool frees_by_plan() const { return leaving_ > 0; }
  /// A plan with all finished slots is made. Returns the tokens of output that are free when it has come
  /// back; pass them to freed() then.
  std::int32_t plan_made();
  void freed(std::int32_t tokens) { held_ -= tokens; }

  /// Moves to `records` what the worker has to be sent before the next plan: SequenceMedia and EncodeMedia,
  /// in order. False when there is nothing.
  bool take(std::vector<std::vector<std::byte>>& records);

  // ----------------------------------------------------------------- results

  enum class Verdict {
    encoded,
    failed,     ///< its patches were gone
    ignored,    ///< of an earlier epoch, or of a sequence that has left its slot
    malformed,  ///< answers nothing that was asked; the worker cannot be trusted
  };
  struct Ended {
    Verdict verdict = Verdict::ignored;
    std::uint32_t sequence = kNoSequence;  ///< with encoded and failed
    double seconds = 0;                    ///< with encoded
    bool cached = false;                   ///< likewise: an earlier output was still there
  };
  /// Takes a MediaDone.
  Ended done(std::span<const std::byte> bytes);

  /// Tokens of output that are reserved or held.
  std::int32_t held() const { return held_; }
  std::size_t in_flight() const { return out_.size(); }

 private:
  struct Out {
    SlotRef slot{};
    std::int32_t item = 0;
    std::uint32_t sequence = kNoSequence;
  };

  bool fits(const ScheduledSequence& sequence, std::int32_t more) const;
  void settle(ScheduledSequence& sequence);
  void ask_next(std::uint32_t sequence);

  ScheduledSequences& table_;
  const PrefixNames& names_;
  std::uint32_t epoch_ = 0;
  std::int32_t budget_ = 0;
  std::int32_t held_ = 0;     ///< the sum of all reservations, those of slots that are being left included
  std::int32_t leaving_ = 0;  ///< of these, of slots that the next plan tells of
  std::vector<Out> out_;      ///< asked for and not answered
  std::vector<std::vector<std::byte>> records_;
  wire::RecordWriter<wire::SequenceMedia> announcement_;
  wire::RecordWriter<wire::EncodeMedia> order_;
};

/// Bytes of the sequence's SequenceMedia, if it has one and it was not sent yet.
std::size_t announcement_bytes(const ScheduledSequence& sequence);

}  // namespace troupe
