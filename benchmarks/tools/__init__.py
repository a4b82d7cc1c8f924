"""Our benchmark beside `vllm bench serve` and llama-benchy, on the same server."""
