#pragma once
// Whether a checkpoint was trained for embeddings.
#include <string>

namespace troupe::model {

/// True if `directory` has the file that models for embeddings have, 1_Pooling/config.json, and it asks for
/// the last token's hidden row, the one that is offered here.
bool trained_for_embeddings(const std::string& directory);

}  // namespace troupe::model
