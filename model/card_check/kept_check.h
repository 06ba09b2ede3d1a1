#pragma once
// What a check of a card's kernels found, and the small JSON file that keeps it, one for each card, driver
// and build.
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "gpu/kernel_ways.h"
#include "model/card_check/card_key.h"

namespace troupe::model {

/// An op that a card computes wrongly.
struct CheckFailure {
  std::string op, what, way;             ///< as KernelCheck has them
  std::string reason;                    ///< what was wrong
  std::optional<KernelWay> avoidable{};  ///< without it another kernel runs; absent: there is none

  bool operator==(const CheckFailure&) const = default;
};

struct CardCheck {
  int checks = 0;
  double seconds = 0;
  std::vector<CheckFailure> failures;  ///< in the order in which they were found
  KernelWays avoided;                  ///< with these left out every op is right
  bool usable = false;                 ///< false: some op is wrong and has no other kernel

  bool operator==(const CardCheck&) const = default;
};

/// One sentence that refuses the start: names op, card and driver. For a check that is not usable.
std::string refusal(const CardCheck& check, const CardKey& key);

/// Of the start summary: "kernels   checked here, 163 checks in 8.9 s". `kept`: it was made before.
std::string check_line(const CardCheck& check, bool kept);

/// The check that `directory` keeps for the key. Absent if there is none, or if its file cannot be read, is
/// none of ours or is of another card, driver or build: then the card is checked anew.
std::optional<CardCheck> kept_check(const std::string& directory, const CardKey& key);

/// Keeps it, atomically; makes the directory (0700). unavailable names the file and the system's reason.
Status keep_check(const std::string& directory, const CardKey& key, const CardCheck& check);

/// The file of the key.
std::string kept_path(const std::string& directory, const CardKey& key);

/// As JSON, with the key: what the file has.
std::string to_json(const CardCheck& check, const CardKey& key);

}  // namespace troupe::model
