#include "actors/front/front_model.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "actors/engine/shared_vocabulary.h"
#include "actors/gateway/model_facts.h"
#include "actors/topology.h"
#include "config/quantization.h"
#include "model/checkpoint/pooling_config.h"
#include "model/weight_formats.h"
#include "text/parsers/choose_syntax.h"

namespace troupe {
namespace {

/// Every model name that a request may use: those of --served-model-name first.
std::vector<std::string> model_names(const config::ModelOptions& model) {
  const std::string directory = std::filesystem::path(model.directory).lexically_normal().filename().string();
  std::vector<std::string> all = model.served_model_names, names;
  all.insert(all.end(), {directory, model.model, "default"});
  for (const std::string& name : all) {
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

std::size_t distinct(const std::vector<std::string>& names) {
  return std::set<std::string>(names.begin(), names.end()).size();
}

/// Type of the stored KV blocks: --kv-cache-dtype, --dtype, else the checkpoint's.
std::string cache_type(const config::Options& options, const model::ModelSpec& spec) {
  switch (config::kv_cache_dtype(options.quantization)) {
    case config::KvCacheDType::int8: return "int8";
    case config::KvCacheDType::fp8: return "fp8";
    case config::KvCacheDType::automatic: break;
  }
  switch (options.model.dtype) {
    case config::DTypeOption::bfloat16: return "bfloat16";
    case config::DTypeOption::float16: return "float16";
    case config::DTypeOption::float32: return "float32";
    case config::DTypeOption::automatic: break;
  }
  return spec.stored ? to_string(*spec.stored) : "auto";
}

}  // namespace

Result<std::unique_ptr<FrontModel>> FrontModel::read(const config::Options& options, int vocabulary_fd,
                                                     Place place, const Log& log) {
  std::unique_ptr<FrontModel> made(new FrontModel(options, place));
  if (Status status = made->read_files(vocabulary_fd, log); !status.ok()) return status;
  return made;
}

FrontModel::~FrontModel() = default;

Status FrontModel::read_files(int vocabulary_fd, const Log& log) {
  const std::string& directory = options.model.directory;
  auto spec = model::read_spec(directory, options.model.model_config_name);
  if (!spec.ok()) return spec.status();
  spec_ = *std::move(spec);

  config::AnswerOptions answers = options.answers;
  const auto texts_of_it = read_texts(options.model, vocabulary_fd, log, &answers);
  if (!texts_of_it.ok()) return texts_of_it.status();

  auto loaded = ChatTemplate::load(directory, options.model.chat_template, options.model.tokenizer);
  if (loaded.ok()) {
    chat_ = *loaded;
    for (const std::string& name : chat_->missing()) log.warning("chat_template_lacks", {kv("name", name)});
  } else if (loaded.status().code != Code::not_found) {
    return loaded.status();
  } else {
    log.warning("no_chat_template", {kv("directory", directory)});
  }

  auto syntax = choose_syntax(answers, **texts_of_it, chat_.get());
  if (!syntax.ok()) return syntax.status();

  auto generation = model::read_generation_config(directory);
  if (!generation.ok()) return generation.status();
  generation_ = *std::move(generation);
  sessions_ = std::make_shared<SessionContext>(
      SessionContext{*texts_of_it,
                     model::end_ids(generation_, spec_, (*texts_of_it)->eos_id()),
                     options.scheduler.model_len(spec_.max_positions),
                     spec_.vocab,
                     *std::move(syntax),
                     {options.limits.max_answer_scores, options.limits.max_answer_bytes},
                     log.details(3) ? log.max_value_bytes() : 0,
                     options.speculation.method != config::DraftMethod::none,
                     model::trained_for_embeddings(directory)});
  if (place.alone) {
    names_ = model_names(options.model);
    // The others mean the same model, but are not listed.
    served_ = std::clamp<std::size_t>(distinct(options.model.served_model_names), 1, names_.size());
  } else {
    names_ = options.model.served_model_names;
    if (place.index == 0) names_.emplace_back("default");
  }
  return {};
}

Status FrontModel::attach(std::span<const FrontFds::Engine> engines_of_it,
                          std::span<const std::pair<int, int>> texts_of_it) {
  for (const FrontFds::Engine& engine : engines_of_it) {
    auto attached = ipc::UpperEnd::attach(engine.step, engine.cache);
    if (!attached.ok()) return attached.status();
    engines.push_back(std::make_shared<Link>(*std::move(attached)));
    engines.back()->end().beat_elsewhere();
    if (engine.names < 0) continue;
    auto names = ipc::BlockNames::attach(engine.names, ipc::Access::read);
    if (!names.ok()) return names.status();
    block_names.push_back(std::make_shared<ipc::BlockNames>(*std::move(names)));
  }
  if (block_names.size() != engines.size()) block_names.clear();  // they go by the engine's index
  const std::size_t prefills = options.split.prefill_ports.size() + options.remote.prefill_engines.size();
  if (engines.size() <= prefills)
    return failure(Code::internal, "the front needs a link to an engine that is no prefill instance's");
  own_ = engines.size() - prefills;
  health->has_engines(own_);
  for (const auto& [step, cache] : texts_of_it) {
    auto end = ipc::UpperEnd::attach(step, cache);
    if (!end.ok()) return end.status();
    texts.push_back(std::make_shared<Link>(*std::move(end)));
    texts.back()->end().beat_elsewhere();
  }
  return {};
}

http::ModelFacts FrontModel::facts() const {
  http::ModelFacts facts = model_facts(generation_, sessions_->syntax, chat_.get());
  facts.names = names_;
  facts.served_names = served_;
  facts.any_name = options.model.any_model_name;
  facts.vocab_size = spec_.vocab;
  facts.embedding_width = spec_.hidden;
  facts.sees = sees();
  facts.media = config::media_rules(options.media);
  facts.offers_forms = options.guided.on();
  facts.sampling.seed = static_cast<std::uint64_t>(options.model.seed);
  return facts;
}

std::vector<http::ModelCard> FrontModel::cards(std::int64_t created_s) const {
  std::vector<http::ModelCard> cards;
  const wire::Sampling sampling = facts().sampling;
  for (std::size_t i = 0; i < served_; ++i)
    cards.push_back({names_[i], options.model.model, created_s, sessions_->max_model_len, sees(), sampling});
  return cards;
}

FrontSetup FrontModel::setup() const {
  FrontSetup front;
  front.options = options;
  front.block_names = block_names;
  front.engines = engines;
  front.own_engines = own_;
  front.first_remote = engines.size() - options.relayed_engines().size();
  front.texts = texts;
  front.sessions = sessions_;
  front.constants = {TROUPE_VERSION,
                     name(),
                     options.scheduler.max_num_seqs * static_cast<int>(own_),
                     options.scheduler.block_size,
                     cache_type(options, spec_),
                     options.device.gpu_memory_utilization,
                     own_,
                     options.speculation.method,
                     options.speculation.tokens};
  front.health = health;
  front.silent = [cell = health, own = own_](std::uint32_t engine, const SilentPart& silent) {
    if (engine < own) cell->engine_looked(engine, silent.part);
  };
  return front;
}

}  // namespace troupe
