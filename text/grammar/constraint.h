#pragma once
// What one sequence may say next: thoughts first, of which only the end is held (ThinkingRule), then the
// form.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "text/grammar/compiler.h"
#include "text/grammar/thinking_rule.h"

namespace troupe::grammar {

/// A set of tokens, in the form that takes the fewest words.
struct TokenMask {
  enum class Form : std::uint8_t { all, bits, allowed, denied };
  Form form = Form::all;
  std::vector<std::uint32_t> words;  ///< bits: bit v % 32 of word v / 32; else token ids, ascending
};

/// What the sequences of one request share; immutable.
struct ConstraintSpec {
  std::shared_ptr<const CompiledForm> form;  ///< null: free after the thoughts
  ThinkingRule thinking;
  std::vector<TokenId> stop_ids;  ///< ascending; what is left when the form allows nothing
  int vocabulary = 0;             ///< of the model
};

class Constraint {
 public:
  explicit Constraint(std::shared_ptr<const ConstraintSpec> spec);

  /// The next token of the answer.
  void accept(TokenId token);

  /// What may follow the tokens so far: at least one token, unless the model has no stop token.
  void mask(TokenMask& out);

  /// A stop token has ended the form: only stop tokens follow.
  bool ended() const { return matcher_ && matcher_->ended(); }
  /// A token came that its mask did not allow.
  bool failed() const { return failed_; }
  /// Following the form took too long at one token, because it can be read in too many ways. Only stop tokens
  /// follow.
  bool too_slow() const { return too_slow_; }
  /// Not ok: following the form has thrown. Everything is allowed from then on; the request has to be ended.
  const Status& fault() const { return fault_; }
  std::int32_t tokens() const { return tokens_; }  ///< accepted so far

 private:
  void follow(TokenId token);
  void make_mask(TokenMask& out);
  void think(TokenId token);
  void stop_only(TokenMask& out) const;

  std::shared_ptr<const ConstraintSpec> spec_;
  bool thinking_ = false;
  std::size_t forced_ = 0;  ///< tokens of ThinkingRule::forced that have come
  std::int32_t tokens_ = 0;
  bool failed_ = false;
  bool too_slow_ = false;
  Status fault_;
  std::int64_t accept_ns_ = 0;  ///< processor time of the last token
  std::optional<Matcher> matcher_;
};

}  // namespace troupe::grammar
