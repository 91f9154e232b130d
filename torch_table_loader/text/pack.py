"""How documents of tokens become sequences of one length: what the caller asked for, validated once, then frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

from typing_extensions import override

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.messages import first_twice
from torch_table_loader.samples import LENGTH, Samples, SamplesOption
from torch_table_loader.schedules import Schedule, as_schedule
from torch_table_loader.text.parameters import takes_epoch
from torch_table_loader.units import integer, one_of

if TYPE_CHECKING:
    import pyarrow as pa

PackStrategy = Literal["concat", "pad", "best_fit", "windows"]
LongDocs = Literal["split", "truncate", "drop", "error"]
LabelStyle = Literal["hf", "shifted"]
PackOutput = Literal["hf", "flash", "flex", "megatron", "segment_ids"]
PackBalance = Literal["attention"]
IdType = Literal["int64", "int32"]
ContextOrder = Literal["balanced", "contiguous", "documents"]

TENSORS = ("input_ids", "labels", "position_ids", "doc_ids", "cu_seqlens", "max_seqlen")
"""What a batch can have, by the names of this library."""

TOKEN_COLUMNS = ("input_ids", "tokens")
"""Names under which tables usually have their token ids; the first that a table has is taken."""

TEXT_COLUMNS = ("text", "content")
"""The same of text."""

_OF_OUTPUT: dict[str | None, tuple[str, ...]] = {
    None: ("input_ids", "labels"),
    "hf": ("input_ids", "labels", "position_ids"),
    "flash": ("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen"),
    "flex": ("input_ids", "labels", "position_ids", "doc_ids"),
    "megatron": ("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen"),
    "segment_ids": ("input_ids", "labels", "position_ids", "segment_ids"),
}

FLASH_EDGES = ("cu_seq_lens_q", "max_length_q", "cu_seq_lens_k", "max_length_k")
"""Where documents begin, and the longest, by the names that Hugging Face gives FlashAttention."""

_TAKEN = {
    *TENSORS,
    *FLASH_EDGES,
    "cu_seqlens_padded",
    "segment_ids",
    "tokens",
    "loss_mask",
    "documents",
    "spans",
    "padding",
}

_OF_DOCUMENTS = frozenset(
    {"tokens", "bos_id", "eos_id", "sep_id", "min_length", "long_docs", "block_docs"}
    | {"tokenizer", "lengths", "documents", "same_lengths"}
)
"""What a pack says of documents alone, and not of the sequences that come of them."""

_SHAPED_BY: dict[str, tuple[str, ...]] = {
    "concat": (),
    "windows": ("seq_len", "stride"),
    "pad": ("seq_len", "long_docs"),
    "best_fit": ("seq_len", "long_docs", "block_docs", "max_docs_per_row"),
}
"""What decides by strategy which sequences come of documents; where these are cut anywhere, a position is a token."""

IGNORED = -100
"""The label that losses leave out, in torch and in Hugging Face."""

_MOST_TOKENS = 2**31 - 1
"""Offsets of a batch are int32, as FlashAttention takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack(SamplesOption):
    """How documents of tokens become sequences of `seq_len` tokens.

    Args:
        seq_len: number of tokens of a sequence. With "concat" also several, by the step of the first epoch from which
            each holds, such as ``{0: 1024, 1000: 4096}``; later epochs have the last.
        tokens: the list column of token ids, one document per row. A null is a document without tokens. None takes
            ``input_ids`` or else ``tokens``; with a tokenizer, ``text`` or else ``content``.
        strategy: "concat": documents follow one another, and are cut at the ends of sequences. "pad": one document per
            sequence. "best_fit": whole documents, packed so that little space is empty. "windows": with
            ``shuffle="rows"``, the table's tokens are cut into sequences in table order, which are then permuted;
            "concat" permutes documents first there.
        aligned: other list columns with one value per token, such as weights; each is cut like the tokens. A value may
            be a fixed-size list of k numbers, which comes out as ``[batch, seq_len, k]``.
        loss_mask: a list column with one value per token; where it is 0 or false, the label is −100.
        spans: columns of ``list<struct<start, end, ...>>`` with offsets into the document; each is clipped to the
            sequence.
        bos_id: token added to the start of documents that do not begin with it.
        eos_id: token added to the end of documents that do not end with it.
        sep_id: token added after every document.
        pad_id: token that fills the rest of a sequence.
        long_docs: with "pad" and "best_fit", what happens to a document of more than `seq_len` tokens: "split",
            "truncate" (leave out the rest), "drop" or "error".
        min_length: leaves out documents of fewer tokens.
        labels: "hf": aligned with the tokens, as Hugging Face's models shift them themselves; "shifted": the label of a
            token is the next token, as torchtitan and Megatron take them; None: no labels.
        output: None for ``input_ids`` and ``labels``, and ``doc_ids`` where columns of documents come too; a list of
            some of ``input_ids``, ``labels``, ``position_ids``, ``doc_ids``, ``cu_seqlens`` and ``max_seqlen``; or the
            names and forms that an attention needs: "hf", "flash", "flex", "megatron" or "segment_ids". Tensors left
            out cost no time.
        dtype: the type of the token ids that come out, "int64" or "int32". Labels are int64, as losses need them.
        max_docs_per_row: maximum number of documents in a sequence; `cu_seqlens` then has the same size in every batch.
        block_docs: number of documents that "best_fit" packs together.
        tokenizer: makes the tokens if `tokens` is a column of text; needs ``shuffle="rows"``, whose store keeps the
            tokens. "bytes", "tiktoken:NAME", a tokenizer.json or its folder, "module:attribute", or a function that
            takes a list of strings and returns a list of ids for each. Or a `Chat`, for a column of conversations;
            labels are then of what the assistant wrote.
        lengths: an integer column with the number of tokens of each document. It is read instead of the tokens when
            documents are counted before training, and compared with the tokens when these are read.
        balance: "attention" deals the sequences of each global batch to the ranks so that the sums of their documents'
            squared lengths are about equal; needs ``shuffle="rows"``. None deals them in turn.
        stride: with "windows", tokens from the start of one sequence to the start of the next; None for `seq_len`.
        documents: a function that changes documents before they are cut, such as one that masks tokens, moves them for
            fill in the middle, or leaves a document out by giving it no token. It takes a ``pyarrow.RecordBatch`` with
            the columns that are cut and ``seed``, int64: one seed for each document and epoch, whatever the ranks and
            workers. It returns one with the same columns and rows, without ``seed``. Threads call it side by side. If
            it has a parameter ``epoch``, a document may have another number of tokens in each: these are counted before
            the epoch, and with ``shuffle="rows"`` it runs after the gather. Else how many must not depend on the seed,
            and with ``shuffle="rows"`` it runs when the row store is built, with the same seeds for every epoch. States
            and caches know it by its module and name: give a changed function another name.
        same_lengths: `documents` returns as many tokens for each document as it was given, so that it need not be
            called to count them. Another number is an error.
        context: this rank and the number of ranks that share each sequence under context parallelism, such as ``(0,
            4)``, or a ``DeviceMesh`` of one dimension. Tensors with a value a token then have this rank's slice,
            ``[batch, seq_len / 4]``; ``cu_seqlens`` and ``max_seqlen`` are of the whole sequences. Ranks of one group
            must be one rank of the job: pass the mesh of data parallelism as ``num_ranks=``.
        context_order: which slice. "balanced": of 2n chunks those numbered r and 2n − 1 − r, so that causal attention
            costs each rank the same, as Megatron and torchtitan cut. "contiguous": the r-th of n chunks. "documents":
            those two of each document, which is padded to a multiple of 2n, as Transformer Engine cuts its THD format:
            a batch is one row, ``[1, tokens / n]``, and ``cu_seqlens_padded`` comes beside ``cu_seqlens``.

    Raises:
        ConfigError: a value is out of range, or two values do not fit each other.
        ConfigTypeError: a value has the wrong type.

    >>> Pack(seq_len=4096, eos_id=0).tensors
    ('input_ids', 'labels')
    """

    seq_len: int | Mapping[int, int] | Schedule
    tokens: str | None = None
    strategy: PackStrategy = "concat"
    aligned: Sequence[str] = ()
    loss_mask: str | None = None
    spans: Sequence[str] = ()
    bos_id: int | None = None
    eos_id: int | None = None
    sep_id: int | None = None
    pad_id: int = 0
    long_docs: LongDocs = "split"
    min_length: int = 1
    labels: LabelStyle | None = "hf"
    output: PackOutput | Sequence[str] | None = None
    dtype: IdType = "int64"
    max_docs_per_row: int | None = None
    block_docs: int = 4096
    tokenizer: str | Callable[[list[str]], Sequence[Sequence[int]]] | Any | None = None
    lengths: str | None = None
    balance: PackBalance | None = None
    stride: int | None = None
    documents: Callable[..., pa.RecordBatch] | None = None
    same_lengths: bool = False
    context: Any = None
    context_order: ContextOrder = "balanced"

    def __post_init__(self) -> None:
        """Check every field."""
        made = getattr(self.tokenizer, "loss_mask", None)
        if self.labels is not None and self.loss_mask is None and isinstance(made, str):
            object.__setattr__(self, "loss_mask", made)
        self._check_integers()
        for name, allowed in (
            ("strategy", get_args(PackStrategy)),
            ("long_docs", get_args(LongDocs)),
            ("labels", (None, *get_args(LabelStyle))),
            ("balance", (None, *get_args(PackBalance))),
            ("dtype", get_args(IdType)),
            ("context_order", get_args(ContextOrder)),
        ):
            one_of(allowed, f"Pack: {name}", getattr(self, name))
        self._check_lengths()
        self._check_columns()
        self._check_pairs()
        _check_documents(self)
        self._check_context()

    def _check_integers(self) -> None:
        most_id = 2**31 - 1 if self.dtype == "int32" else 2**32 - 1
        for name, least, most in (
            ("min_length", 1, _MOST_TOKENS),
            ("max_docs_per_row", 1, _MOST_TOKENS),
            ("block_docs", 1, 2**20),
            ("stride", 1, _MOST_TOKENS),
            ("bos_id", 0, most_id),
            ("eos_id", 0, most_id),
            ("sep_id", 0, most_id),
            ("pad_id", -(2**31), most_id),
        ):
            given = getattr(self, name)
            if given is None and name not in ("min_length", "block_docs", "pad_id"):
                continue
            object.__setattr__(self, name, integer(f"Pack: {name}", given, least, most))

    def _check_lengths(self) -> None:
        """Keep one length as an int, and several as a schedule."""
        given = as_schedule(self.seq_len)
        lengths = given.mapped(lambda length: integer("Pack: seq_len", length, 1, _MOST_TOKENS))
        several = len(lengths.values) > 1
        if several and not self.joins_documents:
            raise ConfigError(
                f"Pack: sequences change their length where documents are cut anywhere, got strategy={self.strategy!r} "
                'with several lengths; pass one as seq_len=, or use strategy="concat"'
            )
        if several and lengths.unit != "steps":
            raise ConfigError(
                f"Pack: sequences change their length at steps, got unit={lengths.unit!r}; pass a dict of lengths by "
                "step as seq_len="
            )
        object.__setattr__(self, "seq_len", lengths if several else lengths.last)

    def _check_columns(self) -> None:
        for name in ("aligned", "spans"):
            given = getattr(self, name)
            if not _are_names(given):
                raise ConfigTypeError(f"Pack: {name} must be a list of column names, got {given!r}")
            object.__setattr__(self, name, tuple(given))
        for name in ("tokens", "loss_mask", "lengths"):
            given = getattr(self, name)
            if not (isinstance(given, str) or given is None):
                raise ConfigTypeError(f"Pack: {name} must be a column name, got {given!r}")
        single = [name for name in (self.loss_mask, self.lengths) if name is not None]
        names = [*([] if self.tokens is None else [self.tokens]), *self.aligned, *self.spans, *single]
        if (twice := first_twice(names)) is not None:
            raise ConfigError(f"Pack: column {twice!r} is named twice; name each once")
        if hidden := [name for name in self.aligned if name in _TAKEN]:
            raise ConfigError(f"Pack: a batch has {hidden[0]!r} of its own, so no aligned column may have that name")

        self._check_output()

    def _check_output(self) -> None:
        output = self.output
        if output is None or (isinstance(output, str) and output in get_args(PackOutput)):
            return
        if not _are_names(output) or not all(name in TENSORS for name in output) or "input_ids" not in output:
            raise ConfigError(
                f"Pack: output must be None, one of {', '.join(map(repr, get_args(PackOutput)))}, or some of "
                f"{', '.join(map(repr, TENSORS))} with 'input_ids' among them, got {output!r}"
            )
        object.__setattr__(self, "output", tuple(output))

    @property
    def tensors(self) -> tuple[str, ...]:
        """What a batch has of the tokens, by the names of this library."""
        named = self.output if isinstance(self.output, tuple) else _OF_OUTPUT[cast("str | None", self.output)]
        return tuple(name for name in named if name != "labels" or self.labels is not None)

    def _check_pairs(self) -> None:
        if self.stride is not None and "stride" not in _SHAPED_BY[self.strategy]:
            raise ConfigError(f'Pack: stride is for strategy="windows", got strategy={self.strategy!r}')
        if self.stride is not None and self.stride > self.width:
            raise ConfigError(
                f"Pack: stride must be at most seq_len={self.width}, or tokens between windows would be lost, got "
                f"{self.stride}"
            )
        if not self.keeps_documents and self.long_docs != "split":
            raise ConfigError(
                f"Pack: long_docs={self.long_docs!r} does not work with strategy={self.strategy!r}, which cuts "
                'documents where a sequence ends; use "best_fit" or "pad"'
            )
        if self.labels is None and self.loss_mask is not None:
            raise ConfigError("Pack: loss_mask hides labels, but labels=None; leave one of them out")
        _check_tokenizer(self)
        if self.lengths is not None and (self.bos_id is not None or self.eos_id is not None):
            raise ConfigError(
                f"Pack: lengths={self.lengths!r} counts documents without reading their tokens, but bos_id and eos_id "
                "are added only where they are missing; leave lengths out, or use sep_id, which is added to every "
                "document"
            )
        if self.output == "megatron" and self.labels == "hf":
            object.__setattr__(self, "labels", "shifted")

    def _check_context(self) -> None:
        given = self.context
        if given is None:
            return
        if hasattr(given, "get_local_rank"):
            given = given.get_local_rank(), given.size()
        if not (isinstance(given, Sequence) and len(given) == 2):
            raise ConfigTypeError(
                f"Pack: context must be (rank, ranks), or a DeviceMesh of one dimension, got {given!r}"
            )
        ranks = integer("Pack: the ranks of context", given[1], 1, _MOST_TOKENS)
        object.__setattr__(self, "context", (integer("Pack: the rank of context", given[0], 0, ranks - 1), ranks))
        chunks = {"balanced": 2 * ranks, "contiguous": ranks, "documents": 1}[self.context_order]
        if odd := [length for length in self.lengths_by_step.values.values() if length % chunks]:
            raise ConfigError(
                f"Pack: {ranks} ranks of context cut a sequence into {chunks} chunks, got {odd[0]} tokens; pass a "
                f"seq_len that is a multiple of {chunks}"
            )
        if self.labels == "hf":
            raise ConfigError(
                'Pack: labels="hf" are shifted by the model, which has a slice of the sequence under context; pass '
                'labels="shifted", whose slices are those of the next tokens'
            )
        if self.output == "flash" or self.spans:
            why = 'output="flash" makes one flat row of a batch' if self.output == "flash" else "spans lie over slices"
            raise ConfigError(f"Pack: {why}, of which context has no slices; leave one of them out")

    @property
    def cuts_documents(self) -> bool:
        """Whether each rank has slices of each document, and not of each sequence."""
        return self.context is not None and self.context_order == "documents"

    @property
    def joins_documents(self) -> bool:
        """Whether documents follow one another in any order, and are cut where a sequence ends."""
        return self.strategy == "concat"

    @property
    def permutes_documents(self) -> bool:
        """Whether ``shuffle="rows"`` permutes documents, rather than windows of the table's tokens."""
        return self.strategy != "windows"

    @property
    def keeps_documents(self) -> bool:
        """Whether a document is cut only if it is longer than a sequence."""
        return "long_docs" in _SHAPED_BY[self.strategy]

    @property
    def shape(self) -> dict[str, Any]:
        """What decides which sequences come of documents, by name."""
        shaped = {name: getattr(self, name) for name in _SHAPED_BY[self.strategy]}
        return {name: self.width if name == "stride" and value is None else value for name, value in shaped.items()}

    @property
    def cut_columns(self) -> tuple[str, ...]:
        """The list columns that are cut into sequences, the tokens first."""
        return (self.ids, *self.aligned, *([] if self.loss_mask is None else [self.loss_mask]))

    @property
    def stored_columns(self) -> tuple[str, ...]:
        """The columns of the table of which those that are cut are made: the same, unless a tokenizer makes them."""
        return self.cut_columns if self.tokenizer is None else (self.ids, *getattr(self.tokenizer, "beside", ()))

    @property
    def ids(self) -> str:
        """The column of token ids or text; `of_columns` chooses it where the caller named none."""
        return self.tokens or self._usual_columns[0]

    @override
    def of_columns(self, names: Sequence[str]) -> Pack:
        """Return the same with the column of token ids or text that a table has, if the caller named none.

        Raises:
            ConfigError: the table has none of the usual names.

        >>> Pack(seq_len=8).of_columns(["id", "tokens"]).ids
        'tokens'
        """
        if self.tokens is not None:
            return self
        if (found := next((name for name in self._usual_columns if name in names), None)) is None:
            usual, some = " or ".join(map(repr, self._usual_columns)), ", ".join(map(repr, names[:20]))
            what = "token ids" if self.tokenizer is None else "text"
            raise ConfigError(f"Pack: the table has no column {usual}, but {some}; name the one of {what} as tokens=")
        return replace(self, tokens=found)

    @property
    def form(self) -> Pack:
        """The same without what says how documents are found and ended, in which sources of a mixture may differ."""
        plain: dict[str, Any] = {entry.name: entry.default for entry in fields(self) if entry.name in _OF_DOCUMENTS}
        return replace(self, **plain)

    @property
    def _usual_columns(self) -> tuple[str, ...]:
        return TOKEN_COLUMNS if self.tokenizer is None else TEXT_COLUMNS

    @property
    def lengths_by_step(self) -> Schedule:
        """The lengths of sequences, which may be one."""
        return as_schedule(self.seq_len)

    @property
    def width(self) -> int:
        """The tokens of a sequence; where sequences change their length, those of the first."""
        return self.seq_len if isinstance(self.seq_len, int) else cast("int", self.lengths_by_step.values[0])

    @override
    def of_length(self, length: int) -> Pack:
        """Return the same with sequences of one length."""
        return self if self.seq_len == length else replace(self, seq_len=length)

    @property
    def lengths_in_words(self) -> str:
        """The lengths of sequences by step, in words."""
        first, *later = self.lengths_by_step.values.items()
        told = [
            f"{length:,} from step {step:,}{'' if number else ' of the first epoch on'}"
            for number, (step, length) in enumerate(later)
        ]
        return ", ".join([f"{first[1]:,} tokens", *told])

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        longest: int = max(self.lengths_by_step.values.values())
        return longest

    @override
    def samples(self, *, indexed: bool) -> PackedSamples:
        lengths = None
        if isinstance(self.seq_len, Schedule):
            lengths = self.seq_len
        return PackedSamples(
            self,
            indexed,
            width=self.width,
            longest=self.longest,
            lengths=lengths,
            cut_anywhere=self.joins_documents,
            joins_rows=self.joins_documents and not indexed,
        )

    @override
    def as_asked(self, found: Pack) -> Pack:
        return replace(found, tokens=None) if self.tokens is None else found

    @override
    def difference(self, other: Pack) -> tuple[str, Any, Any] | None:
        one, two = self.form, other.form
        pairs = ((entry.name, getattr(one, entry.name), getattr(two, entry.name)) for entry in fields(Pack))
        return next(((f"pack.{name}", mine, theirs) for name, mine, theirs in pairs if mine != theirs), None)

    def reads(self, asked: Sequence[str] | None) -> list[str]:
        """Return what is read: the columns that are cut, spans and lengths, and what the caller named beyond."""
        own = [*self.stored_columns, *self.spans, *([] if self.lengths is None else [self.lengths])]
        return [*own, *(name for name in asked or () if name not in own)]

    @property
    @override
    def why_rows_come_once(self) -> str | None:
        if self.permutes_documents:
            return None
        return 'strategy="windows" cuts tokens without regard to documents; use strategy="concat"'

    @override
    def check_beside(self, options: Mapping[str, Any]) -> None:
        if options["output_format"] not in ("torch", "numpy"):
            raise ConfigError(
                f"output_format={options['output_format']!r} delivers rows of the table as they are, and pack makes "
                'sequences of them; leave pack out, or use output_format="torch" or "numpy"'
            )
        if isinstance(options["columns"], Mapping):
            raise ConfigError(
                "columns as a dict makes tensors of columns of rows, and pack makes sequences of tokens; pass a list "
                "of the columns of documents"
            )
        if self.joins_documents and options["batch_by"] is not None:
            raise ConfigError(
                'strategy="concat" runs sequences on over the ends of files, where batch_by="file" ends batches; leave '
                'batch_by out, or use strategy="best_fit" or "pad"'
            )


def _check_tokenizer(pack: Pack) -> None:
    if pack.tokenizer is not None:
        if not (isinstance(pack.tokenizer, str) or callable(pack.tokenizer) or hasattr(pack.tokenizer, "load")):
            raise ConfigTypeError(f"Pack: tokenizer must be a name, a function or a Chat, got {pack.tokenizer!r}")
        named: dict[str, Any] = {"aligned": pack.aligned, "spans": pack.spans, "lengths": pack.lengths}
        if pack.loss_mask not in (None, getattr(pack.tokenizer, "loss_mask", None)):
            named["loss_mask"] = pack.loss_mask
        if given := [name for name, value in named.items() if value]:
            raise ConfigError(
                f"Pack: {given[0]} describes tokens of the table, but a tokenizer makes them from text; leave "
                f"{given[0]} out, or write a table of tokens with torch-table-loader tokenize"
            )


def _check_documents(pack: Pack) -> None:
    if pack.documents is not None and not callable(pack.documents):
        raise ConfigTypeError(f"Pack: documents must be a function, got {pack.documents!r}")
    if not isinstance(pack.same_lengths, bool):
        raise ConfigTypeError(f"Pack: same_lengths must be True or False, got {pack.same_lengths!r}")
    if pack.same_lengths and pack.documents is None:
        raise ConfigError("Pack: same_lengths is about what documents= returns; leave it out")
    if pack.documents is not None and not pack.same_lengths and pack.lengths is not None:
        raise ConfigError(
            f"Pack: lengths={pack.lengths!r} says how long documents are before documents= changes them; leave it "
            "out, or pass same_lengths=True if they stay as long"
        )
    if pack.documents is not None and pack.spans:
        raise ConfigError("Pack: spans are places in the stored documents, which documents= changes; leave one out")


@dataclass(frozen=True, slots=True)
class PackedSamples(Samples):
    """Sequences of tokens as samples.

    Args:
        indexed: whether they are gathered by index; a stream of documents that are cut anywhere has rows of one token.
    """

    pack: Pack
    indexed: bool

    word: ClassVar[str] = "sequence"
    title: ClassVar[str] = "sequences of tokens"
    filled: ClassVar[str] = "rows or tokens"
    are_rows: ClassVar[bool] = False
    records: ClassVar[tuple[str, ...]] = ("packing",)
    guest: ClassVar[str] = "text"

    @property
    @override
    def changes_by_round(self) -> bool:
        return self.pack.strategy == "best_fit" and self.indexed

    @property
    @override
    def bound(self) -> dict[str, Any]:
        if self.cut_anywhere:
            return {}
        return {LENGTH: self.width}

    @property
    @override
    def compared(self) -> dict[str, Any]:
        return {f"{LENGTH} by step": self.pack.lengths_by_step.as_list, "balance": self.pack.balance}

    @property
    @override
    def notes(self) -> list[str]:
        if self.lengths is None:
            return []
        return [f"sequences have {self.pack.lengths_in_words}"]

    @property
    @override
    def functions(self) -> dict[str, Callable[..., Any]]:
        if self.pack.documents is None:
            return {}
        return {"Pack(documents=...)": self.pack.documents}

    @override
    def check_mixed(self) -> None:
        if self.pack.balance is not None:
            raise ConfigError(
                f"a mixture deals sequences in turn, got balance={self.pack.balance!r}; leave balance out of the packs "
                "of its sources"
            )
        if takes_epoch(self.pack.documents) and not self.indexed:
            raise ConfigError(
                "a mixture of streams goes round its sources with as many sequences each time, and documents= takes "
                'the epoch, so that each has others; pass shuffle="rows" to the sources, or leave that parameter out'
            )

    @override
    def reads(self, asked: Sequence[str] | None) -> list[str]:
        return self.pack.reads(asked)

    @override
    def check_tokens(self, asked: str, remedy: str) -> None:
        if self.pack.strategy == "pad":
            self._refuse_tokens(asked, remedy, 'strategy="pad"')


def _are_names(given: object) -> bool:
    """Say whether a value is a collection of strings, and not one string."""
    return isinstance(given, Iterable) and not isinstance(given, str) and all(isinstance(each, str) for each in given)
