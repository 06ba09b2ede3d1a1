#pragma once
// Stop strings in a growing text. A stop string may begin in one token and end in another, so text that
// could still become one is held back until it cannot.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

class StopFilter {
 public:
  /// `keep` leaves the stop string itself in the text (include_stop_str_in_output).
  StopFilter(std::vector<std::string> stops, bool keep) : stops_(std::move(stops)), keep_(keep) {}

  /// Adds text and returns what is certain to belong to the answer. After a stop string has been met,
  /// stopped() is true and every later call returns nothing. Of several that match, the one that begins
  /// first wins; of those that begin together, the shortest. With `may_stop` false a stop string that ends in
  /// `text` is ordinary text; one that begins in it and ends in a later piece still counts.
  std::string push(std::string_view text, bool may_stop = true);

  /// The end of the text: what was held back, since no stop string completed.
  std::string flush();

  bool stopped() const { return stopped_; }
  const std::string& met() const { return met_; }  ///< the stop string that was met; empty before

 private:
  std::size_t held_tail() const;

  std::vector<std::string> stops_;
  bool keep_;
  bool stopped_ = false;
  std::string met_;
  std::string held_;
};

}  // namespace troupe
