#include "text/grammar/compiler.h"

#include <dlpack/dlpack.h>
#include <grammar_builder.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/utf8.h"
#include "text/grammar/compiler_impl.h"
#include "text/grammar/formats.h"
#include "text/grammar/notices.h"
#include "text/grammar/pattern_check.h"
#include "text/grammar/schema.h"

namespace troupe::grammar {

struct Matcher::Impl {
  std::shared_ptr<const CompiledForm> form;
  xgrammar::GrammarMatcher matcher;
};

namespace {

// A few thousand levels fit a stack; a text that nests deeper is refused by xgrammar instead of ending the
// process.
constexpr int kMaxRecursion = 2000;
constexpr int kMaxWhitespace = 24;  // between two parts of JSON, so that an answer cannot consist of blanks
constexpr int kTrialTokens = 48;
constexpr std::int64_t kTrialNs = 750'000'000;  // of the processor: the refusal is kept

const char* reason(Source::Kind kind) {
  switch (kind) {
    case Source::Kind::json_schema: return "invalid_schema";
    case Source::Kind::regex: return "invalid_regex";
    case Source::Kind::ebnf: return "invalid_grammar";
    case Source::Kind::structural_tag: return "invalid_structural_tag";
  }
  return "";
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  constexpr std::size_t kLongest = 300;
  if (text.size() > kLongest) text.resize(kLongest);
  return utf8::to_valid(text);
}

Status refused(Source::Kind kind, const std::string& why) {
  return invalid("cannot be compiled: " + one_line(why), {}, reason(kind));
}

xgrammar::Grammar to_grammar(const TokenTable& table, const Source& source) {
  switch (source.kind) {
    case Source::Kind::json_schema:
      return xgrammar::Grammar::FromJSONSchema(
          source.text, source.any_whitespace, std::nullopt, std::nullopt, /*strict_mode=*/false,
          source.any_whitespace ? std::optional<int>(kMaxWhitespace) : std::nullopt);
    case Source::Kind::regex: return xgrammar::Grammar::FromRegex(source.text);
    case Source::Kind::ebnf: return xgrammar::Grammar::FromEBNF(source.text);
    case Source::Kind::structural_tag: break;
  }
  auto made = xgrammar::Grammar::FromStructuralTag(source.text, table.impl().info);
  if (auto* error = std::get_if<xgrammar::StructuralTagError>(&made)) {
    std::visit([](auto& e) { throw e; }, *error);
  }
  return std::get<xgrammar::Grammar>(std::move(made));
}

/// Gives the rules that stand for strings of a bounded length their bound (pattern_of_length).
void limit_lengths(xgrammar::Grammar& grammar) {
  xgrammar::Grammar::Impl& impl = *grammar.ImplPtr();
  auto builder = xgrammar::GrammarBuilder::FromMutableGrammar(&grammar);
  for (std::int32_t rule = 0; rule < impl.NumRules(); ++rule) {
    const auto body = impl.GetGrammarExpr(impl.GetRule(rule).body_expr_id);
    if (body.type != xgrammar::Grammar::Impl::GrammarExprType::kRegex) continue;
    if (const auto most = budget_of_pattern(impl.GetRegexString(body))) builder.UpdateMaxChars(rule, *most);
  }
}

/// Walks through the form, taking other tokens at each step, for a bounded time. A form whose masks take too
/// long would hold up every other answer.
Status try_out(const TokenTable& table, const std::shared_ptr<const CompiledForm>& form) {
  std::vector<std::uint32_t> words((static_cast<std::size_t>(table.size()) + 31) / 32);
  const std::int64_t begin = thread_cpu_ns();
  Matcher matcher(form);
  for (std::size_t step = 0; step < kTrialTokens && !matcher.ended(); ++step) {
    matcher.fill(words);
    std::size_t allowed = 0;
    for (const std::uint32_t word : words) allowed += static_cast<std::size_t>(std::popcount(word));
    if (allowed == 0 && step == 0) {
      return invalid("allows no answer: no token of the model can begin one", {}, "unsatisfiable_schema");
    }
    if (allowed == 0) break;
    std::size_t pick = (step * 7919 + 13) % allowed;
    TokenId token = 0;
    for (std::size_t w = 0; w < words.size(); ++w) {
      const auto here = static_cast<std::size_t>(std::popcount(words[w]));
      if (pick >= here) {
        pick -= here;
        continue;
      }
      std::uint32_t word = words[w];
      for (; pick > 0; --pick) word &= word - 1;
      token = static_cast<TokenId>(w * 32 + static_cast<std::size_t>(std::countr_zero(word)));
      break;
    }
    if (!matcher.accept(token)) break;
    if (thread_cpu_ns() - begin > kTrialNs) {
      return invalid("is too complex: its masks take too long", {}, "grammar_too_complex");
    }
  }
  return {};
}

}  // namespace

TokenTable::TokenTable(const Vocabulary& vocabulary)
    : impl_(std::make_shared<Impl>(
          Impl{xgrammar::TokenizerInfo(vocabulary.tokens, xgrammar::VocabType::RAW,
                                       static_cast<int>(vocabulary.tokens.size()), vocabulary.stop_ids)})) {}

int TokenTable::size() const { return impl_->info.GetVocabSize(); }

CompiledForm::CompiledForm(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
CompiledForm::~CompiledForm() = default;

std::size_t CompiledForm::memory_bytes() const { return impl_->grammar.MemorySizeBytes(); }

std::string_view CompiledForm::text_of(TokenId token) const {
  const std::vector<std::string>& texts = impl_->grammar.GetTokenizerInfo().GetDecodedVocab();
  const auto index = static_cast<std::size_t>(token);
  return index < texts.size() ? std::string_view(texts[index]) : std::string_view{};
}

Result<std::shared_ptr<const CompiledForm>> compile(const TokenTable& table, const Source& source,
                                                    int threads) {
  xgrammar::SetMaxRecursionDepth(kMaxRecursion);
  const Notices notices;
  try {
    if (Status status = check_patterns(source); !status.ok()) return status;
    xgrammar::Grammar grammar = to_grammar(table, source);
    limit_lengths(grammar);
    xgrammar::GrammarCompiler compiler(table.impl().info, threads, /*cache_enabled=*/false);
    auto form = std::make_shared<const CompiledForm>(
        std::make_unique<const CompiledForm::Impl>(CompiledForm::Impl{compiler.CompileGrammar(grammar)}));
    if (!notices.all().empty()) {
      return invalid("cannot be enforced: " + one_line(notices.all().front()), {}, reason(source.kind));
    }
    if (Status status = try_out(table, form); !status.ok()) return status;
    return form;
  } catch (const std::bad_alloc&) {
    return invalid("is too complex: compiling it takes too much memory", {}, "grammar_too_complex");
  } catch (const std::exception& error) {
    return refused(source.kind, error.what());
  }
}

Matcher::Matcher(std::shared_ptr<const CompiledForm> form) {
  auto matcher = xgrammar::GrammarMatcher(form->impl().grammar);
  impl_ = std::make_unique<Impl>(Impl{std::move(form), std::move(matcher)});
}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

// A check of xgrammar's that fails while it matches ends this answer, not the process.
bool Matcher::accept(TokenId token) {
  try {
    return impl_->matcher.AcceptToken(token);
  } catch (const std::exception&) {
    return false;
  }
}

void Matcher::take_back(std::int32_t tokens) { impl_->matcher.Rollback(tokens); }

void Matcher::fill(std::span<std::uint32_t> words) {
  std::int64_t shape = static_cast<std::int64_t>(words.size());
  DLTensor mask{};
  mask.data = words.data();
  mask.device = {kDLCPU, 0};
  mask.ndim = 1;
  mask.dtype = xgrammar::GetBitmaskDLType();
  mask.shape = &shape;
  try {
    impl_->matcher.FillNextTokenBitmask(&mask);
  } catch (const std::exception&) {
    std::fill(words.begin(), words.end(), 0);
  }
}

bool Matcher::complete() const { return impl_->matcher.IsCompleted(); }
bool Matcher::ended() const { return impl_->matcher.IsTerminated(); }

}  // namespace troupe::grammar
