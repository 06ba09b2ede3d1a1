#pragma once
#include <map>
#include <memory>
#include <vector>

#include "actors/grammar/form_service.h"
#include "actors/grammar/grammars.h"
#include "actors/grammar/mask_filler.h"
#include "actors/protocol.h"
#include "base/log.h"

namespace troupe {

struct GrammarParts {
  workers_actor link;
  FormServiceSetup forms;
  int vocabulary = 0;    ///< of the model
  unsigned helpers = 0;  ///< threads that make masks beside the actor's own
  Log log;
};

struct GrammarState {
  static inline const char* name = "grammar";
  struct Request {
    caf::typed_response_promise<Compiled> promise;
    std::string request_id;
    std::string param;  ///< the form's field
    grammar::ThinkingRule thinking;
    std::int64_t began_ns = 0;
  };
  struct Watch {
    caf::typed_response_promise<Status> promise;
    std::string request_id;
    std::string param;
  };

  GrammarParts parts;
  std::vector<TokenId> stop_ids;  ///< ascending
  Grammars grammars;
  std::map<std::uint64_t, Request> compiling;  ///< by ticket
  std::map<std::uint64_t, Watch> watches;      ///< by grammar, until it is released
  std::uint64_t next_ticket = 1;
  std::size_t failed = 0;  ///< sequences that were given a token which their mask did not allow
  std::unique_ptr<MaskFiller> filler;
  std::unique_ptr<FormService> forms;
};

/// GRAMMAR. actors/grammar/grammars.h decides; a thread of its own runs the actor, since masks take time.
grammar_actor::behavior_type grammar_behavior(grammar_actor::stateful_pointer<GrammarState> self,
                                              GrammarParts parts);

}  // namespace troupe
