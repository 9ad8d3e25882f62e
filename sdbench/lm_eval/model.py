"""The model that lm-evaluation-harness calls: it decodes answers speculatively and computes log-likelihoods with the target alone.

Not covered: several processes, image or audio input, encoder-decoder models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports] - the extra lm-eval

from sdbench.engine import generate
from sdbench.engines.native.decode import engine_of, rows_that_fit, rows_to_score
from sdbench.engines.stops import stopper
from sdbench.files import digest_of_data
from sdbench.lm_eval.chat import template_name_of, text_of
from sdbench.lm_eval.kept import KeptAnswers, claim
from sdbench.lm_eval.likelihoods import cut_texts, log_likelihoods, refuse_empty, windows_of
from sdbench.lm_eval.measures import counts_of, measures_of
from sdbench.lm_eval.options import TORCH_SEED, AnswerOptions, refuse_run, run_of, warn_of_unused
from sdbench.lm_eval.prompts import PromptGroup, group_prompts
from sdbench.prepare import pair as pairs
from sdbench.prepare.cells import TOP_P, checkpoints_of, decoding_of, law_of
from sdbench.prepare.heads import with_labels
from sdbench.prepare.pair_info import PairInfo
from sdbench.prepare.progress import warn
from sdbench.prepare.refuse import refuse_broken_limits
from sdbench.prepare.rules import build_parts

if TYPE_CHECKING:
    from sdbench.types import Generation


class SpeculativeLM(TemplateLM):
    """A pair with one setting of one rule; `--model_args` takes options of `python -m sdbench`.

    `keep` is a file to which each answer is written as soon as it is complete, so that the same command can continue later.
    """

    def __init__(self, *, keep: str | None = None, **options: Any) -> None:
        super().__init__()
        self.run = run_of(options)
        self._has_seed = options.get("seed") is not None
        (built,) = build_parts(self.run).sweeps
        self.kept = None if keep is None else KeptAnswers(Path(keep))
        self.pair_info = PairInfo.read(pairs.find(self.run.model, device=self.run.device, dtype=self.run.dtype))
        parts = build_parts(self.run, self.pair_info.ids_of)
        refuse_run(self.run, self.pair_info, parts)
        self._parts = parts
        ((self.rule,),) = (built.rules for built in parts.sweeps)
        (self.drafter,) = parts.drafters
        self.pair = pairs.load(self.pair_info.metadata)
        self.engine = engine_of(self.pair_info, parts, self.pair)
        self.tokenizer: Any = self.pair_info.tokenizer
        knobs = dict(built.sweep.settings[0])
        # A head is named by its content, not by its path.
        self.setting = {
            "verifier": built.sweep.name,
            **with_labels(self.rule, knobs),
            "num_draft": self.run.num_draft[0],
        }
        # Everything that decides an answer except its prompt and the harness's options, as in the keys of records.
        self.identity = {
            **decoding_of(self.run, self.pair_info, self.rule, knobs, built.sweep.knobs, drafter=self.drafter),
            "checkpoints": checkpoints_of(self.pair_info, "pair", self.drafter),
            "law": law_of(self.rule),
            "setting": self.setting,
        }
        self.counts: dict[str, list[dict[str, Any]]] = {}  # counts of each text of an evaluation, by task
        self._template: str | None = None  # name of the chat template, if the tokenizer has several
        warn_of_unused(self.pair.target.generation_config, self.run.model.target)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> SpeculativeLM:
        """Build the model. `--model_args` overrides `--device` and `--batch_size`."""
        return cls(**{**(additional_config or {}), **arg_dict})

    # Members that the harness reads

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """Return the token before a text whose log-likelihood is computed without a context."""
        beginning = self.tokenizer.bos_token_id
        return self.eot_token_id if beginning is None else beginning

    @property
    def max_length(self) -> int:
        """Return the longest text that the target accepts, for log-likelihoods; answers have the limit of the pair."""
        return self.pair_info.limit_of("target")

    @property
    def tokenizer_name(self) -> str:
        """Return a hash of everything that turns conversations into prompts: a key of the prompts that `--cache_requests` keeps."""
        template = [self.pair_info.template, self._template, dict(self.run.model.chat_options)]
        return digest_of_data([self.pair_info.tokenizer_key, *template])

    def get_model_info(self) -> dict[str, Any]:
        """Return the setting and its measurements, which the harness reads once, after all answers of an evaluation."""
        counts, self.counts = self.counts, {}
        return {
            "sdbench": {
                "target": self.run.model.target,
                "draft": self.run.model.draft,
                "checkpoints": self.pair_info.checkpoints,
                "numerics": self.pair_info.numerics,
                "drafter": self.drafter.name,
                "drafter_options": {k: v for k, v in self.identity["drafter"].items() if k != "name"},
                "seed": self.run.seed,
                "chat_options": dict(self.run.model.chat_options),
                **self.setting,
                "is_lossless": bool(self.rule.is_lossless().all()),
                "tasks": measures_of(counts, self.run.num_draft[0]),
            }
        }

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the text of the chat template for the results file. If there are several, `chat_template` names one."""
        if not chat_template:
            return None
        self._template = template_name_of(self.tokenizer, chat_template, self.run.model.target)
        return str(self.tokenizer.get_chat_template(self._template))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation."""
        options = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        options |= {"chat_template": self._template, **self.run.model.chat_options}
        return text_of(self.tokenizer, chat_history, options, self.run.model.target)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the ids of a text. No BOS token is added to a text that already begins with one, as chat templates write it."""
        mark = self.tokenizer.bos_token
        has_mark = mark is not None and string.startswith(mark)
        return list(
            self.tokenizer(
                string, add_special_tokens=not has_mark if add_special_tokens is None else add_special_tokens
            )["input_ids"]
        )

    # Answers

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Take the harness's file of `--use_cache`; raise ConfigError if it is of another setting."""
        if cache_hook.dbdict is not None:
            claim(cache_hook.dbdict, digest_of_data([self.identity, self.pair_info.tokenizer_key]))
        super().set_cache_hook(cache_hook)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the answers to the requests of all tasks, in their order; those with equal options are decoded together."""
        self.counts = {}  # the harness calls this once per evaluation: an earlier one that failed may have left counts
        groups = group_prompts(requests, self.tok_encode, self.pair_info.limit(self._parts), self._is_sampled)
        for group in groups:
            self._check(group.options)
        answers: dict[int, str] = {}
        for group in groups:
            answers |= zip((prompt.index for prompt in group.prompts), self._answer(group), strict=True)
        return [answers[index] for index in range(len(requests))]

    def _is_sampled(self, options: AnswerOptions) -> bool:
        return options.temperature > 0 or self.run.verifiers[0].is_drawn

    def _check(self, options: AnswerOptions) -> None:
        """Raise ConfigError if these options break a limit of the rule; warn if the harness's --seed has no effect."""
        refuse_broken_limits(replace(self.run, temperature=options.temperature), self._parts)
        if self._is_sampled(options) and not self._has_seed and torch.initial_seed() != TORCH_SEED:
            warn("lm_eval's --seed does not change sampled answers of sdbench: give seed= in --model_args")

    def _ends(self, options: AnswerOptions) -> tuple[int, ...]:
        """Return the ids that end an answer. The harness's `hf` takes the tokenizer's end-of-text token as one more stop string."""
        return self.pair_info.ends("target", (*options.stops, self.tokenizer.eos_token))

    def _answer(self, group: PromptGroup) -> list[str]:
        """Return the answers to the prompts of a group."""
        options, prompts, tokenizer = group.options, group.prompts, self.pair_info.tokenizer_key
        identity = self.identity if options.top_p in (None, 1) else [self.identity, TOP_P]
        added = self._ends(options)[len(self.pair_info.stop_ids["target"]) :]
        keys = [
            digest_of_data([identity, tokenizer, each.task, asdict(options), each.number, each.ids, *added])
            for each in prompts
        ]
        answers: dict[str, dict[str, Any]] = {}
        if self.kept is not None:
            answers = self.kept.read_by_task(keys, [each.task for each in prompts])
        waiting = [index for index, key in enumerate(keys) if key not in answers]
        last_end = time.perf_counter()

        def finish(generation: Generation, batch: str) -> None:
            nonlocal last_end
            index, end = waiting[generation.request], time.perf_counter()
            text = options.until_stop(self.pair_info.text_alone(generation.tokens))  # as `hf` decodes it
            answers[keys[index]] = {"text": text, "counts": counts_of(generation, end - last_end, batch)}
            last_end = end
            if self.kept is not None:
                self.kept.write(keys[index], answers[keys[index]])
            self.cache_hook.add_partial("generate_until", prompts[index].request.args, text)

        if waiting:
            self._decode([prompts[index].ids for index in waiting], waiting, options, finish)
        for each, key in zip(prompts, keys, strict=True):
            counts = {**answers[key]["counts"], "example": each.request.doc_id, "is_prompt_cut": each.is_cut}
            self.counts.setdefault(each.task, []).append(counts)
        return [answers[key]["text"] for key in keys]

    def _decode(
        self,
        prompts: Sequence[list[int]],
        numbers: Sequence[int],
        options: AnswerOptions,
        finish: Callable[[Generation, str], None],
    ) -> None:
        """Decode prompts. `numbers` are their keys for random numbers; `finish` is called with each text when it ends,
        and with the name of its batch: of as many texts, in the order of their ends, as are decoded at a time.
        """
        cuts: dict[str, Any] = {"top_k": options.top_k, "top_p": options.top_p}
        warp = self.engine.warp(options.temperature, **cuts)
        num_ids = self.engine.vocab_size or self.engine.target.vocab_size  # higher ids are never drawn
        rows, begun = self._rows(options, max(map(len, prompts)) + options.max_new_tokens), time.time_ns()
        batches = (f"{begun}/{number // rows}" for number in count())
        generate(
            None,
            None,
            prompts,
            [self.rule],
            num_draft=self.run.num_draft[0],
            temperature=options.temperature,
            **cuts,
            max_new_tokens=options.max_new_tokens,
            stop_ids=[i for i in self._ends(options) if i < num_ids],
            should_stop=stopper(self.pair_info.text_alone, options.stops),
            keys=numbers,
            seed=self.run.seed,
            batch_size=rows,
            progress=lambda generation: finish(generation, next(batches)),
            drafter=self.engine.drafter(self.drafter.kind, warp, self.drafter.component.options),
            engine=self.engine,
        )

    def _rows(self, options: AnswerOptions, length: int) -> int:
        """Return the batch size; for `auto`, what fits into memory with the sampling options of the task."""
        run = replace(self.run, temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
        return run.batch_size or rows_that_fit(run, self.pair, length)

    # Log-likelihoods

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        refuse_empty(requests, self.tok_encode)
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Return for each continuation its log-probability, and whether greedy decoding would produce it."""
        # The harness moves the spaces at the end of a context to the continuation, which may leave no context.
        requests = [(texts, context or [self.prefix_token_id], ids) for texts, context, ids in requests]
        texts = cut_texts(requests, self.max_length, self.run.model.target)
        rows = self.run.batch_size or rows_to_score(self.run, self.pair, max(map(len, texts), default=1))
        lengths = [len(continuation) for _, _, continuation in requests]
        results: dict[int, tuple[float, bool]] = {}
        for index, result in log_likelihoods(self.pair.target, texts, lengths, batch_size=rows, pad=self.eot_token_id):
            results[index] = result
            if requests[index][0] is not None:
                self.cache_hook.add_partial("loglikelihood", requests[index][0], result)
        return [results[index] for index in range(len(texts))]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text, computed in windows of the target's maximum length."""
        texts = [self.tok_encode(request.args[0]) for request in requests]
        parts = [windows_of(ids, self.prefix_token_id, self.max_length) for ids in texts]
        return [sum(total for total, _ in self._loglikelihood_tokens(windows)) for windows in parts]
