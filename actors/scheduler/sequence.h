#pragma once
// One sequence (one choice of one prompt) as the scheduler keeps it, for its whole life.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "actors/messages.h"
#include "actors/scheduler/known_tokens.h"
#include "base/ids.h"
#include "ipc/wire.h"

namespace troupe {

enum class SequenceState : std::uint8_t {
  waiting,       ///< in the queue; no slot, no lease
  fetching,      ///< has a slot and a lease, some blocks of which are still being copied from the swap space
  running,       ///< has a slot and a lease
  ending,        ///< has ended; kept until no plan in flight and no open ask names it
  putting_back,  ///< likewise, then waits again; results in flight for it still count
};

/// No index of ScheduledSequences.
inline constexpr std::uint32_t kNoSequence = UINT32_MAX;
inline constexpr std::uint32_t kNoGroup = UINT32_MAX;

/// The images and videos of a sequence, and how far the worker is with them.
struct MediaProgress {
  std::int32_t rows_end = INT32_MAX;  ///< positions from here on wait for an item
  std::int32_t encodes_out = 0;       ///< items that are being encoded in its slot
  /// Of the prompt, shared by its choices; null: there are none.
  std::shared_ptr<const std::vector<SequenceItem>> items;
  bool cacheable = false;     ///< what the worker makes of them may serve others
  bool announced = false;     ///< the worker knows of them
  std::int32_t asked = 0;     ///< of the items, the first so many are being encoded, have been, or are not
  std::int32_t ready = 0;     ///< needed; of those, so many have been or are not needed; and
  std::int32_t used = 0;      ///< of so many the worker holds no output any more
  std::int32_t held = 0;      ///< tokens of output that are held, or are being made
  std::int32_t reserved = 0;  ///< likewise, that are held for it; never fewer

  std::span<const SequenceItem> list() const {
    return items == nullptr ? std::span<const SequenceItem>() : *items;
  }
  void note_ready() {
    const auto next = static_cast<std::size_t>(ready);
    rows_end = next < list().size() ? list()[next].item.first : INT32_MAX;
  }
  /// The sequence has no slot.
  void rewind() {
    MediaProgress kept;
    kept.items = std::move(items);
    kept.cacheable = cacheable;
    *this = std::move(kept);
    note_ready();
  }
};

/// With from_last, `planned` and `expected` are upper bounds: how many draft tokens a row in flight accepts
/// is known when its result has come.
///
/// Token i of the sequence is at position i. Position p "was run" when the KV of token p is written; running
/// the last known position samples the token after it.
///
/// The members that a step reads of every running sequence come first, on as few cache lines as possible:
/// between two steps others use the caches.
struct alignas(64) ScheduledSequence {
  SequenceState state = SequenceState::waiting;
  bool live = false;           ///< this entry of the table is in use
  bool started = false;        ///< the worker knows the slot (a plan brought StartSequence)
  bool leased = false;         ///< the CACHE MANAGER holds a lease under this key
  bool ask_open = false;       ///< an ask was made and not answered
  bool admitting = false;      ///< that ask is for admission
  bool refused = false;        ///< the last ask was refused
  bool shares_prompt = false;  ///< another choice brought its prompt
  bool forks = false;          ///< it was admitted, or asks to be, with a lease forked from its group's donor
  bool reported = false;       ///< some output of it was reported
  bool cacheable = false;      ///< its blocks are looked up and published
  bool background = false;     ///< of a batch: others come first, and take its slot
  bool hands_over = false;  ///< another instance goes on with it, and copies its blocks as they are computed
  bool parked = false;      ///< was put back, and its blocks were published under names that only it knows
  bool proven = false;      ///< has yielded a token since it started on this worker
  bool isolated = false;    ///< suspected of killing workers or engines: no other sequence runs in its steps
  bool held = false;        ///< its front is behind: no plan names it and nothing is asked for it
  bool late =
      false;  ///< its next mask is not made: no plan names it, and what its rows in flight sample is not used
  bool mask_made =
      false;           ///< it is late, but the mask has been made: it goes on when no plan in flight names it
  bool again = false;  ///< its next row samples what a row has sampled in vain
  bool owes_ask = false;   ///< GRAMMAR has said that it is late, and no row has been asked for since
  bool drafts = false;     ///< the worker drafts for it
  bool from_last = false;  ///< likewise, and its prompt has been planned: rows begin at its last token

  std::int32_t planned = 0;       ///< positions that are run when all plans in flight have come back
  std::int32_t expected = 0;      ///< tokens that are known when all plans in flight have come back
  std::int32_t committed = 0;     ///< positions known to have been run
  std::int32_t yields_most = 0;   ///< with from_last: tokens that the plans in flight may yield, and
  std::int32_t yields_least = 0;  ///< that they do yield unless it ends
  std::int32_t known = 0;         ///< tokens known when it started on its slot; these are sent as ids
  std::int32_t sent = 0;          ///< of those, sent so far
  std::int32_t blocks = 0;        ///< length of its granted block table
  std::int32_t plans_out = 0;     ///< plans in flight with a row of it
  std::int32_t prompt_tokens = 0;
  std::int32_t max_length = 0;  ///< it ends when it has this many tokens
  std::int32_t published = 0;   ///< blocks of its table that were published, or found so
  SlotRef slot{};
  KnownTokens tokens;  ///< prompt, then output as committed

  RequestKey key{};
  std::vector<BlockId> unsent_blocks;  ///< the table's last entries, not yet told to the worker
  StopIds stop_ids;

  std::uint32_t attempt = 0;      ///< as in Submit; above 0: it goes on after the death of an engine
  std::uint32_t front = 0;        ///< the process that takes its tokens, and
  std::uint32_t destination = 0;  ///< its SESSION HOST there: index of StepOutput::hosts
  std::uint32_t group = kNoGroup;
  /// Workers lost with a plan in flight for it since its last token; above 0: a suspect.
  std::int32_t losses = 0;
  std::int32_t short_lives = 0;  ///< workers lost in a row, each after few tokens of it; reset by more tokens
  std::int32_t life_tokens = 0;  ///< tokens that it has yielded on this worker
  std::int32_t scored = 0;       ///< the logprobs of prompt positions below this were reported
  std::uint64_t grammar = 0;     ///< as in SequenceSpec, and
  std::int32_t gated_from = 0;   ///< likewise
  std::int32_t told = 0;         ///< updates with tokens of it that GRAMMAR was given
  std::int32_t proposes = 0;     ///< with a grammar and drafts: as in wire::StartSequence
  std::int32_t embedding_width = 0;  ///< numbers that its result brings; 0: it is not embedded
  wire::Sampling sampling{};
  MediaProgress media;

  // What steps do not read.
  std::int32_t found = 0;           ///< blocks of its table that were found at its last admission, and
  std::int32_t swapped = 0;         ///< how many of them in the swap space
  std::int32_t cached_tokens = -1;  ///< prompt tokens found at its first admission; -1 before it
  std::int32_t passed_over = 0;     ///< how often a later sequence was admitted while it was refused
  BlockHash root{};                 ///< start of its chain of hashes
  std::vector<BlockHash> hashes;    ///< of its first full blocks, as far as they were needed
  std::uint64_t arrival = 0;        ///< order of submission
  std::int64_t rank =
      0;  ///< place in the queue: arrival, or 0 if it goes on, moved by its priority; lower first
  std::int64_t arrived_ns = INT64_MAX;   ///< when the request of one that goes on arrived: orders equal ranks
  std::uint64_t asked_at = 0;            ///< Leases: releases so far when it was last asked for
  std::int64_t scheduled_ns = 0;         ///< when its first row entered a plan
  std::uint32_t previous = kNoSequence;  ///< links of the WaitingQueue
  std::uint32_t next = kNoSequence;
  std::vector<wire::LogitBias> logit_bias;
  KnownTokens::Given predicted;  ///< what the client takes its answer to be like; null: nothing is known

  /// True when it is admitted, or put back, before `other`.
  bool before(const ScheduledSequence& other) const {
    if (rank != other.rank) return rank < other.rank;
    return arrived_ns != other.arrived_ns ? arrived_ns < other.arrived_ns : arrival < other.arrival;
  }
  /// What it adds to the tokens of the queue: a prompt counts once for all its choices, which share it.
  std::int64_t queued_tokens() const {
    return static_cast<std::int64_t>(shares_prompt ? tokens.own() : tokens.size());
  }
  /// As much of it as the worker is told.
  std::span<const TokenId> prediction() const {
    if (!drafts || predicted == nullptr) return {};
    return std::span(*predicted).first(std::min(predicted->size(), wire::kMostPredicted));
  }
  bool active() const { return state == SequenceState::running; }
  /// True if the worker may be at work on it.
  bool in_flight() const { return plans_out > 0 || media.encodes_out > 0; }
  /// Output tokens as committed, of all attempts.
  std::int32_t output_tokens() const { return static_cast<std::int32_t>(tokens.own()); }
  /// Positions to run before it samples next: 1 when it decodes. 0 when it will end by length, and while it
  /// is late.
  std::int32_t positions_left() const {
    if (from_last) return late || tokens_at_least() >= max_length ? 0 : 1;
    return late || expected >= max_length ? 0 : expected - planned;
  }
  /// Most tokens that GRAMMAR says when the form forces them: the row's last one, and drafts of the next.
  std::int32_t forced() const { return proposes > 0 ? 1 + proposes : 0; }
  /// Rows in flight that sample, of a sequence that is not late.
  std::int32_t samples_out() const {
    return drafts ? yields_least : expected - static_cast<std::int32_t>(tokens.size());
  }
  /// Tokens that are known for sure when all plans in flight have come back.
  std::int32_t tokens_at_least() const { return static_cast<std::int32_t>(tokens.size()) + yields_least; }
  /// Where its next row begins; with from_last, where it begins at the earliest.
  std::int32_t next_position() const { return from_last ? tokens_at_least() - 1 : planned; }
  /// A row in flight is one more, or one less, that yields up to `most` tokens. Requires `drafts`.
  void note_yields(std::int32_t most, std::int32_t rows) {
    yields_most += most * rows;
    yields_least += rows;
    if (from_last) expect_yields();
  }
  /// From the tokens that are known and what is in flight. Requires from_last.
  void expect_yields() {
    expected = std::min(max_length, static_cast<std::int32_t>(tokens.size()) + yields_most);
    planned = std::min(expected, max_length - 1) - 1;
  }
  /// As many of them as the next plans may run: none while it is held, or from an item on that is not
  /// encoded.
  std::int32_t remaining() const {
    return held ? 0 : std::min(positions_left(), std::max(0, media.rows_end - planned));
  }
  /// Positions that the next steps may run: all that is known, and the token after; with the drafts of two
  /// rows, `most_drafts` each.
  std::int32_t wanted_positions(std::int32_t most_drafts) const {
    const std::int32_t ahead = drafts ? 1 + 2 * most_drafts : 1;
    return std::min(expected + ahead, max_length - 1);
  }
};

}  // namespace troupe
