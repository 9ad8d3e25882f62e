"""The model that lm-evaluation-harness calls: answers by speculative decoding, log-likelihoods by the target's plain forward.

Not covered: several processes, images and sounds, encoders with decoders.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports] - the extra lm-eval
from lm_eval.models.utils import normalize_gen_kwargs  # pyright: ignore[reportMissingImports]
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]

from sdbench.cli import compose_run
from sdbench.config import ConfigError, Run, show
from sdbench.engine import generate
from sdbench.engines.native.decode import engine_of, rows_that_fit
from sdbench.engines.stops import stopper
from sdbench.lm_eval.measures import Measured
from sdbench.prepare import pair as pairs
from sdbench.prepare.pair_info import PairInfo
from sdbench.prepare.refuse import known_of, refuse_broken_limits, refuse_drafter_options, refuse_pair
from sdbench.prepare.rules import build_parts

SHORT = {"target": "model.target", "draft": "model.draft"}  # as --model_args target=…,draft=…
SAMPLING = ("temperature", "top_k", "top_p", "max_new_tokens")  # the harness's to say, for each task
DEFAULT_DEVICE = "cuda:0"  # what the harness passes on where no device is named, whether there is one or not
LENGTH = 256  # of an answer whose task names none, as in the harness


class SpeculativeLM(TemplateLM):
    """A pair under one setting of one rule; `--model_args` are words of `python -m sdbench`."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.run = _run_of(options)
        (sweep,) = build_parts(self.run).sweeps
        self.pair_info = PairInfo.read(pairs.find(self.run.model, device=self.run.device, dtype=self.run.dtype))
        parts = build_parts(self.run, self.pair_info.ids_of)
        refuse_broken_limits(self.run, parts)
        refuse_drafter_options(self.run, parts, **known_of(self.pair_info, parts))
        refuse_pair(self.run, self.pair_info, parts)
        ((self.rule,),) = (built.rules for built in parts.sweeps)
        (self.drafter,) = parts.drafters
        self.pair = pairs.load(self.pair_info.metadata)
        self.engine = engine_of(self.pair_info, parts, self.pair)
        self.tokenizer: Any = self.pair_info.tokenizer
        self.setting = {"verifier": sweep.sweep.name, **sweep.sweep.settings[0], "num_draft": self.run.num_draft[0]}
        self.measured: dict[str, Measured] = {}
        self._device = self.pair.target.device

    # What the harness asks of a model

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """What a log-likelihood without a context is conditioned on."""
        beginning = self.tokenizer.bos_token_id
        return self.eot_token_id if beginning is None else beginning

    @property
    def max_length(self) -> int:
        return self.pair_info.limit

    @property
    def tokenizer_name(self) -> str:
        return self.pair_info.tokenizer_key

    def get_model_info(self) -> dict[str, Any]:
        """Facts for the results file, which the harness writes after all answers: the setting, and what was measured."""
        tasks = {name: measured.to_json() for name, measured in self.measured.items()}
        return {
            "sdbench": {
                "target": self.run.model.target,
                "draft": self.run.model.draft,
                "checkpoints": self.pair_info.checkpoints,
                "drafter": self.drafter.name,
                **self.setting,
                "is_lossless": bool(self.rule.is_lossless().all()),
                "tasks": tasks,
            }
        }

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        options = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        options |= self.run.model.chat_options
        return str(self.tokenizer.apply_chat_template(chat_history, tokenize=False, **options))

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """A text that begins with the mark of a beginning, as one of a chat template does, gets no second one."""
        mark = self.tokenizer.bos_token
        has_mark = mark is not None and string.startswith(mark)
        return list(
            self.tokenizer(
                string, add_special_tokens=not has_mark if add_special_tokens is None else add_special_tokens
            )["input_ids"]
        )

    # Answers

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers in the order of the requests; those of a task with the same options are decoded together."""
        groups: dict[tuple[str, str], list[int]] = {}
        for index, request in enumerate(requests):
            options = json.dumps(request.args[1], sort_keys=True)
            groups.setdefault((str(request.task_name), options), []).append(index)
        answers: dict[int, str] = {}
        for (task, options), indices in groups.items():
            contexts = [str(requests[index].args[0]) for index in indices]
            for index, answer in zip(indices, self._answer(task, contexts, json.loads(options)), strict=True):
                answers[index] = answer
                self.cache_hook.add_partial("generate_until", requests[index].args, answer)
        return [answers[index] for index in range(len(requests))]

    def _answer(self, task: str, contexts: Sequence[str], given: Mapping[str, Any]) -> list[str]:
        """The answers of one task; the newest tokens of a context that is too long are kept, as in the harness."""
        options = normalize_gen_kwargs(dict(given), LENGTH)
        stops, length = [stop for stop in options["until"] if stop], options["max_gen_toks"]
        room = self.max_length - length
        if room < 1:
            raise ConfigError(
                f"max_gen_toks={length} of {task} leaves no room for a prompt: the pair takes {self.max_length} tokens"
            )
        prompts = [self.tok_encode(context)[-room:] for context in contexts]
        temperature = float(options.get("temperature", 0)) if options.get("do_sample") else 0.0
        cuts: dict[str, Any] = {key: options.get(key) if temperature else None for key in ("top_k", "top_p")}
        drafter = self.engine.drafter(
            self.drafter.kind, self.engine.warp(temperature, **cuts), self.drafter.component.options
        )
        begin = time.perf_counter()
        generations = generate(
            None,
            None,
            prompts,
            [self.rule],
            num_draft=self.run.num_draft[0],
            temperature=temperature,
            **cuts,
            max_new_tokens=length,
            should_stop=stopper(self.pair_info.text, stops),
            seed=self.run.seed,
            batch_size=self._rows(max(map(len, prompts)) + length),
            drafter=drafter,
            engine=self.engine,
        )
        measured = self.measured.setdefault(task, Measured(self.run.num_draft[0]))
        measured.add(generations, time.perf_counter() - begin)
        return [_until(self.pair_info.text(generation.tokens), stops) for generation in generations]

    def _rows(self, length: int) -> int:
        return self.run.batch_size or rows_that_fit(self.run, self.pair, length)

    # Log-likelihoods

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Of each continuation: the sum of its log-probabilities, and whether greedy decoding would have written it."""
        texts = [(context + continuation)[-(self.max_length + 1) :] for _, context, continuation in requests]
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        results: dict[int, tuple[float, bool]] = {}
        rows = self._rows(max(map(len, texts), default=1))
        for start in range(0, len(order), rows):
            batch = order[start : start + rows]
            logits = self._logits([texts[index][:-1] for index in batch])
            for row, index in zip(logits, batch, strict=True):
                continuation, end = requests[index][2], len(texts[index]) - 1
                wanted = torch.tensor(continuation, device=row.device)
                laws = row[end - len(continuation) : end].log_softmax(-1)
                total = laws.gather(-1, wanted[:, None]).sum()
                results[index] = float(total), bool((laws.argmax(-1) == wanted).all())
                if requests[index][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[index][0], results[index])
        return [results[index] for index in range(len(texts))]

    @torch.inference_mode()
    def _logits(self, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """[B,L,V] in float32, right-padded."""
        width = max(map(len, texts))
        ids = torch.tensor([[*text, *[self.eot_token_id] * (width - len(text))] for text in texts], device=self._device)
        mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts], device=self._device)
        return self.pair.target(input_ids=ids, attention_mask=mask).logits.float()

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, in windows of the longest that the pair takes."""
        totals = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            parts = [(None, *map(list, make_disjoint_window(window))) for window in windows]
            totals.append(sum(total for total, _ in self._loglikelihood_tokens(parts)))  # type: ignore[arg-type]
        return totals


def _run_of(options: Mapping[str, Any]) -> Run:
    """The run that `--model_args` describe: one setting, and nothing that the harness decides."""
    given = {SHORT.get(key, key): value for key, value in options.items() if value is not None}
    for key in SAMPLING:
        if key in given:
            raise ConfigError(
                f"{key} is decided by lm_eval for each task: give it as --gen_kwargs, such as "
                "--gen_kwargs do_sample=true,temperature=0.7"
            )
    given.pop("max_batch_size", None)
    if not torch.cuda.is_available() and given.get("device") == DEFAULT_DEVICE:
        given["device"] = "auto"
    with suppress(TypeError, ValueError):  # the harness has it as a text; a word such as auto is left as it is
        given["batch_size"] = int(given["batch_size"]) if "batch_size" in given else "auto"
    words = [
        f"{key}={'[' + ','.join(map(show, value)) + ']' if isinstance(value, list) else show(value)}"
        for key, value in given.items()
    ]
    run = compose_run(words)
    settings = sum(len(sweep.settings) for sweep in run.verifiers)
    if settings != 1 or len(run.num_draft) != 1 or len(run.drafters) != 1:
        raise ConfigError(
            "lm_eval evaluates one model at a time: name one rule with one value of its knobs, one drafter and one num_draft, "
            "such as --model_args target=ID,draft=ID,verifier=ensemble,w=0.7,num_draft=5"
        )
    return run


def _until(text: str, stops: Sequence[str]) -> str:
    """The text up to the earliest stop string."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)]
