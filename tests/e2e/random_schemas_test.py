"""Random schemas (random_schemas.py): an answer that ends by itself fits its schema, by the package jsonschema.

TROUPE_RANDOM_SCHEMAS=2000 tries so many, TROUPE_RANDOM_SCHEMAS_FROM=N begins with another seed.
"""
import concurrent.futures
import json
import os
import unittest

import jsonschema
import openai
import random_schemas
from server import Server

COUNT = int(os.environ.get("TROUPE_RANDOM_SCHEMAS", 24))
FIRST = int(os.environ.get("TROUPE_RANDOM_SCHEMAS_FROM", 0))
STREAMS = 16
MOST_TOKENS = 240
SECONDS = 600


class RandomSchemas(unittest.TestCase):
    def one(self, client, seed):
        """(how it ended, what is wrong with it)."""
        schema = random_schemas.schema(seed)
        try:
            made = client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": f"Give me an example, number {seed}."}],
                max_tokens=MOST_TOKENS, temperature=1, seed=seed,
                response_format={"type": "json_schema", "json_schema": {"name": "random", "schema": schema}})
        except openai.BadRequestError as e:
            return "refused", f"{e.message}"
        choice = made.choices[0]
        if choice.finish_reason != "stop":
            return choice.finish_reason, None
        try:
            random_schemas.check(schema, json.loads(choice.message.content))
        except (ValueError, jsonschema.ValidationError) as e:
            return "stop", f"{choice.message.content}\n{e}"
        return "stop", None

    def test_answers_fit(self):
        with Server("--max-num-seqs", STREAMS) as server, \
                server.client(timeout=SECONDS, max_retries=0) as client, \
                concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            seeds = range(FIRST, FIRST + COUNT)
            ended = dict(zip(seeds, pool.map(lambda seed: self.one(client, seed), seeds)))
        counts = {}
        for how, _ in ended.values():
            counts[how] = counts.get(how, 0) + 1
        wrong = [f"seed {seed}: {how}: {what}\n{json.dumps(random_schemas.schema(seed), ensure_ascii=False)}"
                 for seed, (how, what) in ended.items() if what]
        print(f"{COUNT} schemas: {counts}; {len(wrong)} wrong")
        self.assertEqual(wrong, [], "\n\n".join(wrong[:20]))
        self.assertGreaterEqual(counts.get("stop", 0), COUNT // 2, "too few answers ended by themselves")


if __name__ == "__main__":
    unittest.main()
