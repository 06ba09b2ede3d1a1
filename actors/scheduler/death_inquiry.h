#pragma once
// Which sequences may have killed a worker or an engine, and which one has.
#include <cstdint>

#include "actors/scheduler/sequence_table.h"

namespace troupe {

/// When the worker is lost, sequences are recomputed on the next one. Those with a plan in flight, or an
/// image that is being encoded, become suspects until their next token. A suspect whose start killed the
/// worker, or that was there at two deaths, is isolated: it is admitted when no other suspect runs, and until
/// it has a token its rows are the only ones in flight. A death then proves it to be the cause, and it fails
/// alone. A sequence that yields a few tokens in each life of a worker and then kills it is isolated too,
/// after kMaxShortLives deaths. One that was there at the deaths of engines is isolated from its submission
/// on.
class DeathInquiry {
 public:
  /// A sequence that was there at so many deaths, each before it had yielded kForgivingTokens tokens on that
  /// worker, runs alone until it has yielded as many.
  static constexpr std::int32_t kMaxShortLives = 8;
  static constexpr std::int32_t kForgivingTokens = 8;

  /// A new sequence; `alone`: as in Submit.
  void begin(ScheduledSequence& sequence, bool alone);
  /// It has yielded a token.
  void yielded(ScheduledSequence& sequence) const;

  /// A worker is lost. Call it while ScheduledSequence::in_flight() still tells which sequences it was at
  /// work on; then, for each sequence that has not ended, either proves() is true, or tried_again() follows.
  void worker_lost(const ScheduledSequences& table);
  /// True if the sequence has killed the worker: it was isolated, and alone in flight.
  bool proves(const ScheduledSequence& sequence) const {
    return sequence.in_flight() && sequence.isolated && in_flight_ == 1;
  }
  /// The next worker will compute it. It is a suspect from now on if it was in flight.
  void tried_again(ScheduledSequence& sequence);

  /// The running sequence that must have its steps for itself, or kNoSequence. Admission lets in one at a
  /// time. One that is held lets the sequences of other fronts run, once its plans in flight have come back.
  std::uint32_t isolated(const ScheduledSequences& table) {
    return isolates_ ? find_isolated(table) : kNoSequence;
  }

 private:
  std::uint32_t find_isolated(const ScheduledSequences& table);

  bool isolates_ = false;       ///< some sequence may be isolated
  std::int32_t in_flight_ = 0;  ///< sequences that were in flight at the last death
};

/// True while the sequence may kill the worker: admission keeps the isolated one apart from all others of
/// these.
inline bool is_suspect(const ScheduledSequence& s) { return s.losses > 0 || s.isolated; }

}  // namespace troupe
