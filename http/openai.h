#pragma once
// Everything that spells an OpenAI field name, for those who need all of it.
#include "http/openai_error.h"     // IWYU pragma: export
#include "http/openai_request.h"   // IWYU pragma: export
#include "http/openai_response.h"  // IWYU pragma: export
