"""`vllm serve` on an exported folder, in a process of its own: compiled, with the plugin found by its entry point."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from longshort import generate
from longshort.data.tokenizer import ByteTokenizer
from longshort.hf import write_folder

from .models import small

ROOT = Path(__file__).parents[2]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def serving(folder: Path, log: Path):
    """The address of a server; whatever it says goes to the log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = ("VLLM_ENABLE_V1_MULTIPROCESSING", "TORCHDYNAMO_DISABLE")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    sizes = ["--block-size", "32", "--kv-cache-memory-bytes", str(64 << 20), "--max-num-seqs", "4"]
    command = [sys.executable, "-m", "tests.serving.command", "serve", str(folder), "--served-model-name", "small"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", *sizes]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        while not answers(f"{address}/health"):
            assert process.poll() is None, log.read_text()
            time.sleep(1)
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def answers(address: str) -> bool:
    try:
        return DIRECT.open(address, timeout=5).status == 200
    except OSError:
        return False


def ask(address: str, **request) -> dict:
    body = json.dumps({"model": "small", "temperature": 0, "max_tokens": 12} | request).encode()
    question = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with DIRECT.open(question, timeout=120) as answer:
        return json.load(answer)


@pytest.mark.timeout(600)
def test_the_server_answers_completions_and_chats(tmp_path):
    gpt, tokenizer = small("long_short"), ByteTokenizer()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    folder = write_folder(gpt, tokenizer, tmp_path / "exported", chat_template=template)
    text = "Heads have reaches of their own. " * 4
    prompt = torch.tensor(tokenizer.encode(text))[None]
    own = [int(token) for token in generate(gpt, prompt, max_new_tokens=12, temperature=0, stop=256)]
    with serving(folder, tmp_path / "log") as address:
        completed = ask(f"{address}/v1/completions", prompt=text, return_token_ids=True)
        assert completed["choices"][0]["token_ids"] == own
        assert completed["usage"]["prompt_tokens"] == prompt.shape[1]
        chat = ask(f"{address}/v1/chat/completions", messages=[{"role": "user", "content": text}])
        assert chat["choices"][0]["message"]["content"] == completed["choices"][0]["text"]
