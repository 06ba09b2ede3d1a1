#pragma once
// Which requests are suspected of ending engines. What ends engines must not end them for ever, and the
// request that does it has to be told apart from those that ran beside it.
#include <cstdint>

namespace troupe {

/// How one request has fared in the engines that ran it. A life lasts from its submission to an engine to
/// that engine's end. Used by one thread.
class EngineLives {
 public:
  static constexpr std::int32_t kSuspectDeaths = 2;  ///< ends of engines without a token since: it runs alone
  static constexpr std::int32_t kMostDeaths = 3;     ///< and here it fails
  static constexpr std::int32_t kFewTokens = 8;      ///< a life with fewer is short
  static constexpr std::int32_t kShortLives = 8;     ///< so many short lives in succession: it runs alone

  /// It is submitted to an engine.
  void begin() { tokens_ = 0; }

  void yielded(std::int32_t tokens) {
    tokens_ += tokens;
    deaths_ = 0;
    if (tokens_ >= kFewTokens) short_lives_ = lone_ends_ = 0;
  }

  /// The engine that it was submitted to has ended. `alone`: it held the place in Quarantine.
  void ended(bool alone) {
    if (tokens_ == 0) ++deaths_;
    if (tokens_ >= kFewTokens) return;
    ++short_lives_;
    if (alone) ++lone_ends_;
  }

  /// From its submission until this is false it runs alone.
  bool suspect() const { return deaths_ >= kSuspectDeaths || short_lives_ >= kShortLives; }

  /// It must not be submitted again.
  bool poisonous() const { return deaths_ >= kMostDeaths || lone_ends_ >= kMostDeaths; }

 private:
  std::int32_t tokens_ = 0;       // of this life
  std::int32_t deaths_ = 0;       // since the last token
  std::int32_t short_lives_ = 0;  // since the last life that was not short
  std::int32_t lone_ends_ = 0;    // of these, lives in quarantine
};

}  // namespace troupe
