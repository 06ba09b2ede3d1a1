#pragma once
// Forms in the compiler's words → compiled forms → matchers. The only header over xgrammar; its own stay in
// the .cpp.
//
// Compiling takes from a millisecond to forever and cannot be interrupted: in the server it runs in a process
// that can be killed (actors/grammar/form_process.h). A compiled form travels as bytes.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/grammar/vocabulary.h"

namespace troupe::grammar {

/// A form that has been checked, as the compiler reads it. Equal sources compile to equal forms.
struct Source {
  enum class Kind : std::uint8_t { json_schema, regex, ebnf, structural_tag };
  Kind kind = Kind::json_schema;
  bool any_whitespace = true;  ///< between the parts of JSON; else ", " and ": " alone
  std::string text;
  bool operator==(const Source&) const = default;
};

/// A vocabulary, sorted for matching. Cheap to copy, immutable.
class TokenTable {
 public:
  explicit TokenTable(const Vocabulary& vocabulary);
  int size() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

/// Immutable; used by any number of matchers at once.
class CompiledForm {
 public:
  struct Impl;
  explicit CompiledForm(std::unique_ptr<const Impl> impl);
  ~CompiledForm();

  std::size_t memory_bytes() const;
  /// What the token prints. Empty: no grammar allows it.
  std::string_view text_of(TokenId token) const;
  std::string to_bytes() const;
  /// From to_bytes() of the same table. Not ok: the bytes are of another table or damaged.
  static Result<std::shared_ptr<const CompiledForm>> from_bytes(const TokenTable& table,
                                                                std::string_view bytes);

  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<const Impl> impl_;
};

/// Compiles with `threads` threads. Not ok: invalid_argument, with the reason invalid_schema,
/// unsupported_schema, invalid_regex, invalid_grammar, invalid_structural_tag or grammar_too_complex. `param`
/// and the begin of the message are the path to the fault within the form (".properties.a.pattern"), or
/// empty.
Result<std::shared_ptr<const CompiledForm>> compile(const TokenTable& table, const Source& source,
                                                    int threads);

/// Follows one answer. Moving is cheap; copying is cheap compared with compiling.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const CompiledForm> form);
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;
  ~Matcher();

  /// False when the form does not allow the token here; nothing has changed then.
  bool accept(TokenId token);

  /// Takes the last `tokens` accepted ones back.
  void take_back(std::int32_t tokens);

  /// Bit v % 32 of word v / 32: token v is allowed. No bit is set when nothing can follow. `words` has
  /// ceil(table size / 32). Not after ended().
  void fill(std::span<std::uint32_t> words);

  bool complete() const;  ///< what was accepted is a whole answer, which may go on or not
  bool ended() const;     ///< a stop token was accepted

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::grammar
