"""Nobody drafts: plain autoregressive decoding is speculation with empty drafts."""

from torch import Tensor

from sdbench.types import Context, DraftBlock, Feedback


class NoDraft:
    """Blocks without slots."""

    needs: frozenset[str] = frozenset()

    def open(self, num_rows: int, capacity: int) -> None:
        pass

    def close(self) -> None:
        pass

    def prefill(self, prompt: Tensor) -> None:
        return None

    def admit(self, row: int, prefix: None) -> None:
        pass

    def move(self, source: int, row: int) -> None:
        pass

    def draft(
        self, context: Context, k: int, lengths: Tensor, u: Tensor, feedback: Feedback | None, needs: frozenset[str]
    ) -> DraftBlock:
        assert k == 0, "requests without a drafter have num_draft 0"
        return DraftBlock.empty(lengths)
