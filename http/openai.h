#pragma once
// All of OpenAI's requests, answers and errors.
#include "http/openai_error.h"     // IWYU pragma: export
#include "http/openai_request.h"   // IWYU pragma: export
#include "http/openai_response.h"  // IWYU pragma: export
