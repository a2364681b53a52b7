"""A scripted fake of `vllm serve`: a real process on a real port that does what a script says, and logs what it did.

python -m bench_runner.scripted_server [--script FILE.json] [serve] MODEL --port P --served-model-name NAME …
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import httptools

from bench_runner.scripted_answer import STREAM_HEAD, AnswerWriter, RequestRecord, Told
from bench_runner.scripted_engine import BLOCK_TOKENS, Answer, Engine, PrefixCache
from bench_runner.scripted_metrics import exposition
from bench_runner.server_script import CommandLine, complain
from service.domain.errors import MemoryPolicyError

# Ignores SIGTERM and lives in a session of its own, as a stray engine process would; ends by itself after a while.
STUBBORN_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}


class ScriptedServer:
    """State of the whole process."""

    def __init__(self, line: CommandLine, loop: asyncio.AbstractEventLoop) -> None:
        self.line = line
        self.script = line.script
        limit = self.script.max_running
        self.engine = Engine(
            max_running=line.number("--max-num-seqs", None) if limit is None else limit,
            loop=loop,
        )
        self.writer = AnswerWriter(self.script, model=line.served_model)
        self.records: list[RequestRecord] = []
        self.connections = 0
        self.child_pid: int | None = None
        # Over all requests: tokens looked up in the prefix cache and found there.
        self.queries = 0
        self.hits = 0
        self._prefix_cache = PrefixCache()
        self._caching = "--no-enable-prefix-caching" not in line.flags

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of everything but completions."""
        line, developer = self.line, os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
        if path == "/health":
            return 200, ""
        if path == "/metrics":
            return 200, self._metrics()
        if path == "/version":
            return 200, json.dumps({"version": "0.28.0"})
        if path == "/v1/models":
            name = "another-model" if self.script.wrong_model else line.served_model
            model = {"id": name, "object": "model", "root": line.model, "max_model_len": line.max_model_len}
            return 200, json.dumps({"object": "list", "data": [model]})
        if path == "/reset_prefix_cache" and developer:
            self._prefix_cache.clear()
            return 200, json.dumps({"success": not self.engine.running})
        if path == "/server_info" and developer:
            return 200, json.dumps({"vllm_config": self._config(), "vllm_env": {}, "system_env": {}})
        if path == "/script/log":
            return 200, "".join(f"{record.line()}\n" for record in self.records)
        if path == "/script/state":
            state = {"pid": os.getpid(), "child_pid": self.child_pid, "arguments": line.tokens}
            return 200, json.dumps({**state, "script": asdict(self.script)})
        return 404, json.dumps({"detail": "Not Found"})

    def complete(
        self, body: bytes, *, request_id: str, connection: int, write: Callable[[bytes], None]
    ) -> Answer | tuple[int, str]:
        """Starts an answer, or refuses with status and body."""
        arrived_ns = time.monotonic_ns()
        script = self.script
        content = json.loads(body)
        prompt: str | list[Any] = content["prompt"]
        words = prompt.split() if isinstance(prompt, str) else prompt
        record = RequestRecord(
            number=len(self.records) + 1,
            request_id=request_id,
            connection=connection,
            arrived_ns=arrived_ns,
            prompt_tokens=len(words),
            asked_tokens=int(content.get("max_tokens", 16)),
            cached_tokens=None,
            prompt=prompt if script.log_prompts else None,
        )
        self.records.append(record)
        if record.number == script.die_on_request:
            print("EngineDeadError: scripted death", file=sys.stderr, flush=True)
            os._exit(1)
        refused = self._refusal(content, record)
        if refused:
            return refused
        self._look_up(record, words)
        options = content.get("stream_options") or {}
        told = Told(
            token_ids=bool(content.get("return_token_ids")) and not (script.no_token_ids or script.no_counts),
            usage=(script.no_token_ids or bool(options.get("continuous_usage_stats"))) and not script.no_counts,
        )
        answer = Answer(record, self.writer.writes(record, prompt=words, told=told), write)
        if not (script.hang_all or record.number == script.hang_on_request):
            write(STREAM_HEAD)
        self.engine.submit(answer)
        return answer

    def _refusal(self, content: dict[str, Any], record: RequestRecord) -> tuple[int, str] | None:
        script, longest = self.script, self.line.max_model_len
        if script.refuse_all:
            return _error(500, "scripted refusal")
        if script.status is not None and record.number % script.status_every == 0:
            return _error(script.status, "scripted status")
        if content.get("model") != self.line.served_model:
            return _error(404, f"The model `{content.get('model')}` does not exist.")
        if record.prompt_tokens == 0:
            return _error(400, "The decoder prompt cannot be empty")
        if record.prompt_tokens + record.asked_tokens > longest:
            return _error(400, f"This model's maximum context length is {longest} tokens.")
        return None

    def _look_up(self, record: RequestRecord, words: Sequence[Any]) -> None:
        share = self.script.cached_share
        if share is not None:
            cached = int(share * record.prompt_tokens)
        else:
            cached = self._prefix_cache.add(words) if self._caching else 0
        if share is not None or "--enable-prompt-tokens-details" in self.line.flags:
            record.cached_tokens = cached
        self.queries += record.prompt_tokens
        self.hits += cached

    def _metrics(self) -> str:
        # KV usage counts the whole blocks of prompts and answers that are running.
        running = [answer.record for answer in self.engine.running]
        blocks = sum(-(-(record.prompt_tokens + record.tokens) // BLOCK_TOKENS) for record in running)
        values = {
            "vllm:num_requests_running": len(running),
            "vllm:num_requests_waiting": len(self.engine.waiting),
            "vllm:kv_cache_usage_perc": min(1.0, blocks / self.script.num_gpu_blocks),
            "vllm:prefix_cache_queries_total": self.queries,
            "vllm:prefix_cache_hits_total": self.hits,
            "vllm:num_preemptions_total": self.script.preemptions_per_request * len(self.records),
            "vllm:prompt_tokens_total": sum(record.prompt_tokens for record in self.records),
            "vllm:generation_tokens_total": sum(record.tokens for record in self.records),
            "vllm:request_success_total": sum(record.ended for record in self.records),
        }
        return exposition(values, self.script, served_model=self.line.served_model, block_tokens=BLOCK_TOKENS)

    def _config(self) -> dict[str, Any]:
        line = self.line
        return {
            "model_config": {"model": line.model, "max_model_len": line.max_model_len},
            "cache_config": {"enable_prefix_caching": self._caching, "num_gpu_blocks": self.script.num_gpu_blocks},
            "scheduler_config": {
                "max_num_seqs": line.number("--max-num-seqs", 128),
                "max_num_batched_tokens": line.number("--max-num-batched-tokens", 2048),
            },
        }


class Connection(asyncio.Protocol):
    """One client's connection, one request at a time."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        server.connections += 1
        self._number = server.connections
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._write(b"")

    def connection_lost(self, error: Exception | None) -> None:
        """The client has gone, or we have cut."""
        self._transport = None
        if self._answer is not None:
            self._server.engine.drop(self._answer)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._url, self._request_id = b"", ""
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        """Called by the parser."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if name.lower() == b"x-request-id":
            self._request_id = value.decode()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser: a whole request is here."""
        path = self._url.partition(b"?")[0].decode()
        if path != "/v1/completions":
            return self._reply(*self._server.get(path))
        body = b"".join(self._body)
        try:
            answer = self._server.complete(
                body, request_id=self._request_id, connection=self._number, write=self._write
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            answer = _error(400, f"not a completion request: {error}")
        if isinstance(answer, Answer):
            self._answer = answer
            return None
        return self._reply(*answer)

    def _reply(self, status: int, body: str) -> None:
        content = body.encode()
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'Scripted')}\r\ncontent-length: {len(content)}\r\n"
        kind = "application/json" if body.startswith("{") else "text/plain; version=0.0.4"
        self._write(f"{head}content-type: {kind}\r\n\r\n".encode() + content)

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            return
        if data:
            self._transport.write(data)
        else:
            self._transport.close()


def _error(status: int, message: str) -> tuple[int, str]:
    return status, json.dumps({"error": {"message": message, "type": "ScriptedError", "code": status}})


async def serve(line: CommandLine, *, host: str, port: int) -> None:
    """Answers until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        if line.script.ignore_sigterm:
            signal.signal(number, signal.SIG_IGN)
        else:
            loop.add_signal_handler(number, ended.set)
    server = ScriptedServer(line, loop)
    if line.script.leave_child:
        child = subprocess.Popen([sys.executable, "-c", STUBBORN_CHILD], start_new_session=True)
        server.child_pid = child.pid
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), None if line.script.never_ready else line.script.startup_s)
    if ended.is_set():
        return
    if line.script.exit_at_startup is not None:
        print(line.script.startup_log, file=sys.stderr, flush=True)
        os._exit(line.script.exit_at_startup)
    await loop.create_server(lambda: Connection(server), host, port, backlog=2048)
    print(f"scripted server for {line.served_model} on http://{host}:{port}", file=sys.stderr, flush=True)
    await ended.wait()


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 after a signal, 2 for a command line that cannot be used, or as scripted."""
    try:
        line = CommandLine.parse(arguments)
        host, port = line.flags.get("--host") or "127.0.0.1", line.number("--port", 8000) or 8000
    except (MemoryPolicyError, ValueError, TypeError) as error:
        return complain(error)
    try:
        # The standard loop writes at once where others gather writes, so that the times in the log are true.
        asyncio.run(serve(line, host=host, port=port))
    except OSError as error:
        return complain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
