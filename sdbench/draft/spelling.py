"""A text in the ids of two tokenizers, kept by decoding and encoding a window. Ids before the window no longer change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sdbench.draft.text_index import count_common
from sdbench.draft.translation import UNKNOWN

SAMPLED = 1000  # ids that a tokenizer's check decodes and encodes


class Speller:
    """Decodes and encodes with a tokenizer, without special tokens.

    Texts are encoded one at a time, because batches wait for threads, and without the offsets of tokens, which would take an
    eighth of the time.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.fast = getattr(tokenizer, "backend_tokenizer", None)
        if self.fast is not None:  # each call of the tokenizer changes these
            self.fast.no_truncation()
            self.fast.no_padding()

    def texts_of(self, rows: Sequence[Sequence[int]]) -> list[str]:
        if self.fast is not None:
            return [self.fast.decode(row, skip_special_tokens=True) for row in rows]
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return [str(self.tokenizer.decode(list(row), **options)) for row in rows]

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        if self.fast is not None:
            return [self.fast.encode_batch_fast([text], add_special_tokens=False)[0].ids for text in texts]
        return [list(ids) for ids in self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def refuse_undecodable(tokenizer: Any, name: str) -> None:
    """Raise ValueError for a tokenizer that does not reproduce the texts of its ids when they are encoded and decoded."""
    speller, special = Speller(tokenizer), set(tokenizer.all_special_ids)
    ids = [index for index in range(0, len(tokenizer), max(1, len(tokenizer) // SAMPLED)) if index not in special]
    before = speller.ids_of(["a"])[0]  # a first token may lose its space
    try:
        texts = [text for text in speller.texts_of([[*before, index] for index in ids]) if UNKNOWN not in text]
        back = speller.texts_of(speller.ids_of(texts))
    except Exception as error:  # a tokenizer's own code may raise anything
        raise ValueError(f"the tokenizer of the {name} cannot decode its own ids ({error})") from error
    changed = [(text, other) for text, other in zip(texts, back, strict=True) if text.strip() != other.strip()]
    if not texts or 2 * len(changed) > len(texts):
        shown = f": {changed[0][0]!r} comes back as {changed[0][1]!r}" if changed else ""
        raise ValueError(
            f"the tokenizer of the {name} cannot decode its own ids: {len(changed)} of {len(texts)} texts "
            f"come back changed{shown}; give a model with a tokenizer that can"
        )


@dataclass
class SpelledText:
    """A text of the target's tokens and its draft ids `ids`: `settled`, which no longer change, and those of the window.

    The window holds the last tokens of the target. Its first `num_lead` are context only; `lead_ids` are their draft ids.
    """

    settled: list[int]
    window: list[int]
    size: int
    ids: list[int]
    num_lead: int = 0
    lead_ids: tuple[int, ...] = ()
    is_open: bool = False  # whether the draft can continue after it
    rate: float = 1.0  # draft ids per target token, in the prompt

    @property
    def num_settled(self) -> int:
        return len(self.settled)

    def copy(self) -> "SpelledText":
        return replace(self, settled=list(self.settled), window=list(self.window), ids=list(self.ids))


@dataclass(frozen=True, slots=True)
class WrittenDraft:
    """The ids that a draft wrote; `is_ended`: a special token followed them."""

    ids: list[int]
    is_ended: bool


@dataclass(frozen=True, slots=True)
class SpelledBlock:
    """Tokens of the target, and how many more would have been offered if the draft's last id had not changed them."""

    tokens: list[int]
    num_lost: int


class Spelling:
    """Keeps texts of a target's tokens in a draft's ids. As a text grows, a window of 2 to 3 times `look_behind` tokens is decoded
    and encoded again. The window moves forward where this changes no id.
    """

    def __init__(self, target: Any, draft: Any, look_behind: int) -> None:
        self.target, self.draft, self.look_behind = Speller(target), Speller(draft), look_behind
        self.begin: list[int] = list(draft("")["input_ids"])  # the ids at the beginning of each text of the draft

    def begin_text(self, prompt: list[int]) -> SpelledText:
        text = SpelledText(list(self.begin), [], 0, list(self.begin) or [0])
        self.extend({0: text}, {0: prompt})
        if text.is_open:
            text.rate = max(1, len(text.ids) - len(self.begin)) / max(1, len(prompt))
        return text

    def extend(self, texts: Mapping[int, SpelledText], new: Mapping[int, list[int]]) -> None:
        """Append tokens to texts. If they change the ids of the window's context, or end within a character, the draft ids stay
        as they were and the text is not open.
        """
        grown = [texts[row] for row in new]
        for text, tokens in zip(grown, new.values(), strict=True):
            text.window += tokens
            text.size += len(tokens)
        spelled = self.target.texts_of([text.window for text in grown])
        for text, shown, ids in zip(grown, spelled, self.draft.ids_of(spelled), strict=True):
            num_lead = len(text.lead_ids)
            text.is_open = tuple(ids[:num_lead]) == text.lead_ids and not shown.endswith(UNKNOWN)
            if text.is_open:
                text.ids = text.settled + ids[num_lead:] or [0]
                if len(text.window) - text.num_lead > 2 * self.look_behind:
                    self._move(text, ids)

    def _move(self, text: SpelledText, ids: list[int]) -> None:
        """Move the window past tokens whose draft ids can be settled: encoded alone, their text gives a prefix of `ids`, which
        encode the whole window, and the rest has the same ids after a context of `look_behind` tokens.
        """
        for stop in range(len(text.window) - self.look_behind, text.num_lead, -1):
            (ids_before,) = self.draft.ids_of(self.target.texts_of([text.window[:stop]]))
            if len(ids_before) < len(text.lead_ids) or ids[: len(ids_before)] != ids_before:
                continue
            lead = text.window[max(0, stop - self.look_behind) : stop]
            window = lead + text.window[stop:]
            lead_ids, ids_whole = self.draft.ids_of(self.target.texts_of([lead, window]))
            if ids_whole == lead_ids + ids[len(ids_before) :]:
                text.settled += ids_before[len(text.lead_ids) :]
                text.window, text.num_lead, text.lead_ids = window, len(lead), tuple(lead_ids)
                return

    def spell(
        self, texts: Sequence[SpelledText], drafts: Sequence[WrittenDraft], limits: Sequence[int]
    ) -> list[SpelledBlock]:
        """Return what the draft wrote after open texts as tokens of the target, at most `limits` for each text."""
        rows: list[list[int]] = []
        for text, draft in zip(texts, drafts, strict=True):
            lead = text.ids[-self.look_behind :]
            rows += [lead, lead + draft.ids[: len(draft.ids) - (not draft.is_ended)], lead + draft.ids]
        shown = iter(self.draft.texts_of(rows))
        tails = [text.window[-self.look_behind :] for text in texts]
        contexts = self.target.texts_of(tails)
        spelled: list[str] = []
        for context, lead, *longer in zip(contexts, shown, shown, shown, strict=True):
            behind = [other[len(lead) :] if other.startswith(lead) else "" for other in longer]
            spelled += [context + part.partition(UNKNOWN)[0] for part in behind]
        encoded = iter(self.target.ids_of(spelled))
        blocks: list[SpelledBlock] = []
        for context, before, shorter, whole, limit in zip(contexts, tails, encoded, encoded, limits, strict=True):
            if not _begin_with(before, shorter, whole):  # rare: encoding mostly gives the text's own tokens
                (before,) = self.target.ids_of([context])
            blocks.append(_block_of(before, shorter, whole, limit))
        return blocks


def _begin_with(before: list[int], *rows: list[int]) -> bool:
    return all(row[: len(before)] == before for row in rows)


def _block_of(before: list[int], shorter: list[int], whole: list[int], limit: int) -> SpelledBlock:
    """Return what follows `before` in `whole`, as far as `shorter` agrees; nothing if `before` is not a prefix of both."""
    count, common = len(before), count_common(shorter, whole)
    tokens = whole[count:common] if _begin_with(before, whole[:common]) else []
    return SpelledBlock(tokens[:limit], max(0, min(limit, len(whole) - count) - len(tokens)))
