#pragma once
// What one sequence may say next: thoughts first, of which only the end is held (ThinkingRule), then the
// form.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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

  bool allows(TokenId token) const;
};

/// What may follow if an answer goes on with tokens that are guessed.
struct Ahead {
  std::vector<TokenMask> masks;  ///< behind the first of them, the first two, …
  /// What the form forces behind the last of those masks' places, or where the answer is if there are none:
  /// at least two tokens, or none. Where a text is forced that can be cut into tokens in several ways, the
  /// longest tokens.
  std::vector<TokenId> forced;

  void clear() {
    masks.clear();
    forced.clear();
  }
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

  /// Requires that `now` is the mask() of this place. Sets `out` to what may follow if the answer goes on
  /// with `drafts`, with up to `most_forced` forced tokens. The first draft token that is not allowed, or
  /// ends the answer, ends them, or a thread that has used `until_ns` of its processor's time
  /// (thread_cpu_ns()). The answer stays where it is.
  void look_ahead(std::span<const TokenId> drafts, std::size_t most_forced, const TokenMask& now,
                  std::int64_t until_ns, Ahead& out);

  /// A stop token has ended the form: only stop tokens follow.
  bool ended() const { return matcher_ && matcher_->ended(); }
  /// A token came that its mask did not allow.
  bool failed() const { return at_.failed; }
  /// Following the form took too long at one token, because it can be read in too many ways. Only stop tokens
  /// follow.
  bool too_slow() const { return at_.too_slow; }
  /// Not ok: following the form has thrown. Everything is allowed from then on; the request has to be ended.
  const Status& fault() const { return fault_; }
  std::int32_t tokens() const { return at_.tokens; }  ///< accepted so far

 private:
  /// How far the answer is.
  struct Place {
    bool thinking = false;
    std::size_t forced = 0;     ///< tokens of ThinkingRule::forced that have come
    std::int32_t tokens = 0;    ///< all
    std::int32_t followed = 0;  ///< of the form
    bool failed = false;
    bool too_slow = false;
    std::int64_t accept_ns = 0;  ///< processor time of the last token
  };

  void follow(TokenId token);
  void make_mask(TokenMask& out);
  void think(TokenId token);
  bool step_ahead(TokenId token, const TokenMask& now, std::int64_t until_ns, TokenMask& next);
  std::optional<TokenId> forced_token(const TokenMask& mask) const;
  void stop_only(TokenMask& out) const;

  std::shared_ptr<const ConstraintSpec> spec_;
  Place at_;
  Status fault_;
  std::optional<Matcher> matcher_;
};

}  // namespace troupe::grammar
