// A compiled form as bytes: the grammar as xgrammar writes it, then the automata of its rules and its
// precomputed masks as they lie in memory. As JSON, which is xgrammar's own way, the masks take four times as
// long as compiling, and the automaton of each rule repeats the one that all rules share: 700 properties came
// to more than a gigabyte. Both sides are the same build.
#include <compiled_grammar_impl.h>
#include <grammar_impl.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "text/grammar/compiler.h"
#include "text/grammar/compiler_impl.h"

namespace troupe::grammar {
namespace {

using xgrammar::AdaptiveTokenMask;
using xgrammar::ParserState;
static_assert(std::is_trivially_copyable_v<ParserState>);

class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  template <class T>
  void value(const T& v) {
    out_.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  template <class T>
  void array(const T* items, std::size_t count) {
    value(static_cast<std::uint64_t>(count));
    out_.append(reinterpret_cast<const char*>(items), count * sizeof(T));
  }

 private:
  std::string& out_;
};

class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && in_.empty(); }

  template <class T>
  T value() {
    T v{};
    copy(&v, sizeof v);
    return v;
  }
  /// Appends the items to `out`.
  template <class Container>
  void array(Container& out) {
    using T = typename Container::value_type;
    const auto count = value<std::uint64_t>();
    if (count > in_.size() / sizeof(T)) ok_ = false;
    if (!ok_) return;
    out.resize(count);
    copy(out.data(), count * sizeof(T));
  }

 private:
  void copy(void* to, std::size_t bytes) {
    ok_ = ok_ && in_.size() >= bytes;
    if (!ok_ || bytes == 0) return;
    std::memcpy(to, in_.data(), bytes);
    in_.remove_prefix(bytes);
  }

  std::string_view in_;
  bool ok_ = true;
};

void write(Writer& writer, const AdaptiveTokenMask& mask) {
  writer.value(static_cast<std::int32_t>(mask.store_type));
  for (const auto* indices : {&mask.accepted_indices, &mask.rejected_indices, &mask.uncertain_indices}) {
    writer.array(indices->data(), indices->size());
  }
  std::vector<std::uint32_t> words((static_cast<std::size_t>(mask.accepted_bitset.Size()) + 31) / 32);
  for (int i = 0; i < mask.accepted_bitset.Size(); ++i) {
    if (mask.accepted_bitset[i]) words[static_cast<std::size_t>(i) / 32] |= 1u << (i % 32);
  }
  writer.array(words.data(), words.size());
}

/// False when the mask does not fit a table of `tokens` ids of which `sorted` print something.
bool read(Reader& reader, int tokens, std::size_t sorted, AdaptiveTokenMask& mask) {
  const auto type = reader.value<std::int32_t>();
  if (type < 0 || type > 2) return false;
  mask.store_type = static_cast<AdaptiveTokenMask::StoreType>(type);
  for (auto* indices : {&mask.accepted_indices, &mask.rejected_indices, &mask.uncertain_indices}) {
    reader.array(*indices);
    const auto fits = [&](std::int32_t i) { return i >= 0 && static_cast<std::size_t>(i) < sorted; };
    if (!reader.ok() || !std::all_of(indices->begin(), indices->end(), fits)) return false;
  }
  std::vector<std::uint32_t> words;
  reader.array(words);
  if (!reader.ok()) return false;
  if (mask.store_type != AdaptiveTokenMask::StoreType::kAcceptedBitset) return words.empty();
  if (words.size() != (static_cast<std::size_t>(tokens) + 31) / 32) return false;
  mask.accepted_bitset = xgrammar::DynamicBitset(tokens);
  mask.accepted_bitset |= xgrammar::DynamicBitset(tokens, words.data());
  return true;
}

/// The grammar without the automata of its rules, which share `complete_fsm`; then of each rule where its
/// automaton begins and ends in that.
void write(Writer& writer, const xgrammar::Grammar& grammar) {
  const auto shared = std::make_shared<xgrammar::Grammar::Impl>(*grammar.ImplPtr());
  const auto automata = std::exchange(shared->per_rule_fsms, {});
  shared->optimized = false;  // such a grammar has an automaton for each rule
  const std::string text = xgrammar::Grammar(shared).SerializeJSON();
  writer.array(text.data(), text.size());
  writer.value(static_cast<std::uint64_t>(automata.size()));
  for (const auto& automaton : automata) {
    writer.value(static_cast<std::int32_t>(automaton.has_value()));
    if (!automaton) continue;
    const auto& ends = automaton->GetFsm().GetEnds();
    writer.value(static_cast<std::int32_t>(automaton->GetFsm().GetStart()));
    writer.array(ends.data(), ends.size());
    writer.value(static_cast<std::int32_t>(automaton->GetEdgeNum()));
    writer.value(static_cast<std::int32_t>(automaton->GetNodeNum()));
  }
}

/// Nothing when the bytes are damaged.
std::optional<xgrammar::Grammar> read_grammar(Reader& reader) {
  std::string text;
  reader.array(text);
  auto read = xgrammar::Grammar::DeserializeJSON(text);
  if (!reader.ok() || !std::holds_alternative<xgrammar::Grammar>(read)) return std::nullopt;
  auto grammar = std::get<xgrammar::Grammar>(std::move(read));
  xgrammar::Grammar::Impl& impl = *grammar.ImplPtr();
  const auto automata = reader.value<std::uint64_t>();
  if (impl.complete_fsm.IsNull() || automata != static_cast<std::uint64_t>(impl.NumRules()))
    return std::nullopt;
  const int states = impl.complete_fsm.NumStates();
  const auto known = [&](std::int32_t state) { return state >= 0 && state < states; };
  for (std::uint64_t i = 0; i < automata; ++i) {
    auto& automaton = impl.per_rule_fsms.emplace_back();
    if (reader.value<std::int32_t>() == 0) return std::nullopt;
    const auto start = reader.value<std::int32_t>();
    std::vector<std::int32_t> ends;
    reader.array(ends);
    const auto edges = reader.value<std::int32_t>(), nodes = reader.value<std::int32_t>();
    if (!reader.ok() || !known(start) || !std::all_of(ends.begin(), ends.end(), known)) return std::nullopt;
    automaton.emplace(xgrammar::CompactFSMWithStartEnd(impl.complete_fsm, start, std::move(ends)), edges,
                      nodes);
  }
  impl.optimized = true;
  return grammar;
}

}  // namespace

std::string CompiledForm::to_bytes() const {
  const xgrammar::CompiledGrammar::Impl& compiled = *impl_->grammar.ImplPtr();
  std::string out;
  Writer writer(out);
  write(writer, compiled.grammar);
  writer.value(static_cast<std::uint64_t>(compiled.adaptive_token_mask_cache.size()));
  for (const auto& [state, mask] : compiled.adaptive_token_mask_cache) {
    writer.value(state);
    write(writer, mask);
  }
  return out;
}

Result<std::shared_ptr<const CompiledForm>> CompiledForm::from_bytes(const TokenTable& table,
                                                                     std::string_view bytes) {
  const Status damaged = failure(Code::internal, "the bytes of a compiled form are damaged");
  try {
    Reader reader(bytes);
    auto grammar = read_grammar(reader);
    if (!grammar) return damaged;
    auto compiled = std::make_shared<xgrammar::CompiledGrammar::Impl>();
    compiled->grammar = *std::move(grammar);
    compiled->tokenizer_info = table.impl().info;
    const std::size_t sorted = table.impl().info.GetSortedDecodedVocab().size();
    const auto masks = reader.value<std::uint64_t>();
    for (std::uint64_t i = 0; i < masks && reader.ok(); ++i) {
      const auto state = reader.value<ParserState>();
      AdaptiveTokenMask mask;
      if (!read(reader, table.size(), sorted, mask)) return damaged;
      compiled->adaptive_token_mask_cache.emplace(state, std::move(mask));
    }
    if (!reader.at_end()) return damaged;
    return std::make_shared<const CompiledForm>(
        std::make_unique<const Impl>(Impl{xgrammar::CompiledGrammar(std::move(compiled))}));
  } catch (const std::exception& error) {
    return failure(Code::internal, std::string("a compiled form cannot be read: ") + error.what());
  }
}

}  // namespace troupe::grammar
