"""What a user may set, in sections. None means "choose for me"; `resolve` turns it into a value.

Field descriptions are the command line's help texts: each field becomes one option.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PrefixCacheKind = Literal["none", "radix", "hashed", "block-tree"]
EvictionPolicy = Literal[
    "lru",
    "lfu",
    "slru",
    "priority",
    "fifo",
    "filo",
    "mru",
    "free-queue",
    "priority-lru",
    "none",
]
"""The first seven are a radix tree's; each other index has one of its own."""

PublicationName = Literal["at-plan", "at-chunk-end", "postpone"]
BlockSize = Literal[1, 2, 4, 8, 16, 32, 64, 128, 256]
KVType = Literal["f32", "f16", "bf16"]
BackendName = Literal["native", "torch"]
GrammarBackendName = Literal["llguidance", "xgrammar", "outlines", "lm-format-enforcer", "none"]
ContextForm = Literal["block-table", "request-to-token", "block-list", "block-offsets"]
Isa = Literal["portable", "avx2", "avx512", "avx512bf16"]
PresetName = Literal["treadle", "vllm", "sglang", "trtllm"]
Usage = Literal["server", "offline"]
Layout = Literal["api+engine", "http+scheduler+detokenizer", "proxy+worker"]
"""Into which processes a server is split: `config.processes`."""

KVMemoryRule = Literal["of-free", "of-total", "reserve", "after-peak"]
"""What a fraction of memory is a fraction of, and what is taken off: `config.rules.kv`."""

OrderName = Literal["fcfs", "priority", "lpm", "dfs-weight", "hrrn", "lof", "random", "routing-key"]
"""In which order waiting requests are looked at: `schedule.order`."""

PriorityRule = Literal["ignore", "refuse", "abort", "count"]
"""What becomes of a request's priority: `engine.priorities`."""

CompositionName = Literal["unified", "prefill-first", "two-stage"]
AdmissionName = Literal["stepwise", "estimate", "no-evict", "max-utilization", "static"]
ShortageName = Literal[
    "preempt-newest",
    "preempt-lowest-priority",
    "retract-by-length",
    "retract-by-priority",
    "never",
]
ChunkPolicy = Literal["in-turn", "equal-progress"]

LengthRule = Literal["window", "sglang", "trtllm"]
"""How long prompts and answers may be: `text.lengths`."""

Source = Literal[
    "argument",
    "config file",
    "environment",
    "preset",
    "model card",
    "hardware",
    "data structure",
    "default",
]
"""Where a value comes from."""

# A bound binds the number only; on `int | None` msgspec refuses it.
AtLeastOne = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
TextWorkers = Annotated[int, Meta(ge=0, le=64)]
AtLeastTwo = Annotated[int, Meta(ge=2)]
ThreadCount = Annotated[int, Meta(ge=1, le=1024)]
RowCount = Annotated[int, Meta(ge=1, le=2**16)]
StepTokens = Annotated[int, Meta(ge=1, le=2**20)]
"""There are tables with a place for each; a slip of the finger shall not ask for all memory."""
Seconds = Annotated[float, Meta(ge=0)]
NotEmpty = Annotated[str, Meta(min_length=1)]
Fraction = Annotated[float, Meta(gt=0, le=1)]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    model: Annotated[
        str,
        Meta(description="A .gguf file, a model's directory, a hub id, 'demo' or 'gemma'."),
    ] = "demo"
    served_model_name: Annotated[
        list[NotEmpty],
        Meta(
            description="Name in the API; by default that of the command line, or the file's stem. "
            "More than one may do; answers have the first."
        ),
    ] = []
    chat_template: Annotated[
        NotEmpty | None,
        Meta(description="A file with a chat template, or the template, in place of the model's."),
    ] = None
    generation_config: Annotated[
        Literal["auto", "none"],
        Meta(description="Whether the model's own sampling defaults apply."),
    ] = "auto"
    max_model_len: Annotated[
        AtLeastTwo | None, Meta(description="Window in tokens, prompt and answer together.")
    ] = None


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    prefix_cache: Annotated[
        PrefixCacheKind | None, Meta(description="Index that finds computed prefixes again.")
    ] = None
    eviction_policy: Annotated[
        EvictionPolicy | None,
        Meta(description="Which cached prefix makes room first; lru to mru are the radix tree's."),
    ] = None
    publication: Annotated[
        PublicationName | None,
        Meta(
            description="When others find what a request computes: once a step is planned (vLLM),"
            " once it has ended (SGLang), or so too, and who would find more waits (TensorRT-LLM)."
        ),
    ] = None
    prefix_wait_tokens: Annotated[
        NotNegative | None,
        Meta(
            description="A request waits for another to compute what both begin with, if it is so"
            " many tokens; 0: never."
        ),
    ] = None
    partial_reuse: Annotated[
        bool | None,
        Meta(description="Share the part of a block that two prompts have in common (block-tree)."),
    ] = None
    copy_on_partial_reuse: Annotated[
        bool | None,
        Meta(description="Copy such a block where it cannot be taken over, being used by others."),
    ] = None
    block_size: Annotated[BlockSize | None, Meta(description="Tokens per KV block.")] = None
    kv_dtype: Annotated[KVType | None, Meta(description="Type that K and V are stored in.")] = None
    kv_cache_memory_bytes: Annotated[
        AtLeastOne | None, Meta(description="Memory for K and V, in bytes.")
    ] = None
    kv_soft_limit_bytes: Annotated[
        NotNegative | None,
        Meta(
            description="Once K and V have taken so much memory, prefixes that nobody holds make"
            " room before more is taken; 0: only once all they may take is full."
        ),
    ] = None
    kv_memory_rule: Annotated[
        KVMemoryRule | None,
        Meta(
            description="How memory for K and V is found: a share of what is free, of all less what"
            " is needed (vLLM), all less a reserve (SGLang), of what a step leaves (TensorRT-LLM)."
        ),
    ] = None
    kv_memory_fraction: Annotated[
        Fraction | None, Meta(description="The share that the rule takes; each rule has its own.")
    ] = None


class ScheduleSettings(msgspec.Struct, frozen=True, kw_only=True):
    max_num_seqs: Annotated[RowCount | None, Meta(description="Most requests running at once.")] = (
        None
    )
    max_num_batched_tokens: Annotated[
        StepTokens | None, Meta(description="Most tokens computed in one step.")
    ] = None
    overlap_depth: Annotated[
        Literal[0, 1] | None,
        Meta(description="Steps planned ahead of the one whose tokens are known."),
    ] = None

    length_rule: Annotated[
        LengthRule | None,
        Meta(
            description="How long prompts and answers may be: what the window holds, or as SGLang"
            " or TensorRT-LLM have it."
        ),
    ] = None
    allow_auto_truncate: Annotated[
        bool | None,
        Meta(description="Under SGLang's length rule, cut what is too long in place of refusing."),
    ] = None


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    composition: Annotated[
        CompositionName | None, Meta(description="Who computes how many tokens in a step.")
    ] = None
    admission: Annotated[
        AdmissionName | None, Meta(description="When there is enough KV for a request to start.")
    ] = None
    shortage: Annotated[
        ShortageName | None, Meta(description="Who gives way when running requests find no KV.")
    ] = None
    chunked_prefill: Annotated[
        bool | None,
        Meta(description="Divide prompts that a step has no room for; else they wait for one."),
    ] = None
    long_prefill_token_threshold: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="unified: most tokens of one request in a step; 0: no bound."),
    ] = None
    max_prefill_tokens: Annotated[
        AtLeastOne | None,
        Meta(description="prefill-first: most prompt tokens of a step, but for the first prompt."),
    ] = None
    mixed_chunk: Annotated[
        bool | None, Meta(description="prefill-first: let decodes join a step of prompts.")
    ] = None
    chunk_policy: Annotated[
        ChunkPolicy | None,
        Meta(description="two-stage: whether prompts get a step's tokens in turn, or all alike."),
    ] = None
    chunk_unit_tokens: Annotated[
        AtLeastOne | None,
        Meta(description="two-stage: a chunk that does not end a prompt is a multiple of it."),
    ] = None
    reserve_full_prompt: Annotated[
        bool | None,
        Meta(description="stepwise: start once all of a prompt finds blocks, not its first chunk."),
    ] = None
    watermark: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None,
        Meta(description="stepwise: share of the blocks that stays free when others run."),
    ] = None
    schedule_conservativeness: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="estimate: factor on how much requests are expected to generate."),
    ] = None


class OrderSettings(msgspec.Struct, frozen=True, kw_only=True):
    order: Annotated[
        OrderName | None, Meta(description="In which order waiting requests are looked at.")
    ] = None
    priorities: Annotated[
        PriorityRule | None,
        Meta(
            description="What a request's priority does: nothing, a refusal with 400 (refuse) or"
            " 503 (abort), or it counts."
        ),
    ] = None
    low_priority_values_first: Annotated[
        bool | None,
        Meta(description="Whether smaller priorities are more important (vLLM), or larger."),
    ] = None
    missing_priority: Annotated[
        Literal["zero", "worst"] | None,
        Meta(description="The priority of a request that has none: 0 (vLLM), or the worst."),
    ] = None
    priority_preemption: Annotated[
        bool | None,
        Meta(
            description="Whether running requests give way to a more important one, where"
            " priorities count, composition is prefill-first and admission an estimate."
        ),
    ] = None
    priority_preemption_threshold: Annotated[
        int | None,
        Meta(description="By more than this it must be more important."),
    ] = None
    in_batch_check_threshold: Annotated[
        int | None,
        Meta(
            description="lpm, hrrn: waiting requests with at most so many cached tokens are"
            " compared with each other; -1: none."
        ),
    ] = None
    in_batch_share_threshold: Annotated[
        AtLeastOne | None,
        Meta(description="lpm, hrrn: one that shares so many tokens with an earlier one waits."),
    ] = None
    sort_limit: Annotated[
        AtLeastOne | None,
        Meta(description="lpm, hrrn: with more waiting, first come, first served."),
    ] = None
    order_seed: Annotated[int | None, Meta(description="What the random order draws from.")] = None


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    backend: Annotated[
        BackendName | None, Meta(description="Kernels to run on; torch needs PyTorch installed.")
    ] = None
    isa: Annotated[
        Isa | None, Meta(description="Variant of the native kernels; by default the best one here.")
    ] = None
    threads: Annotated[ThreadCount | None, Meta(description="Threads that compute.")] = None
    processes: Annotated[
        Layout | None,
        Meta(description="Processes of a server; those of vLLM, SGLang or TensorRT-LLM."),
    ] = None
    num_postprocess_workers: Annotated[
        TextWorkers | None,
        Meta(description="Processes that make texts beside proxy and worker; 0: the proxy does."),
    ] = None
    context_form: Annotated[
        ContextForm | None,
        Meta(
            description="How attention is told where K and V lie; others than block-table need the"
            " torch backend."
        ),
    ] = None
    write_and_attend: Annotated[
        bool | None,
        Meta(description="Ask for storing K and V and for attention by one op, not by two."),
    ] = None
    grammar_backend: Annotated[
        Literal["auto", GrammarBackendName] | None,
        Meta(
            description="Library that holds answers to schemas, regexes and grammars; none refuses "
            "such requests. Those beside llguidance are extras to install."
        ),
    ] = None


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(description="Port to listen on; 0 takes a free one.", ge=0, le=65535)
    ] = 8000
    max_output_tokens: Annotated[
        AtLeastOne | None, Meta(description="Most tokens of one answer; by default what fits.")
    ] = None
    max_answers: Annotated[
        int, Meta(description="Most answers to one request: prompts times n.", ge=1)
    ] = 1024
    enable_timings: Annotated[
        bool, Meta(description="Say in every answer where its time went.")
    ] = False
    trust_request_chat_template: Annotated[
        bool, Meta(description="Let requests bring chat templates of their own.")
    ] = False
    max_queued_requests: Annotated[
        int,
        Meta(description="Most answers waiting beyond those that run; more get 503.", ge=0),
    ] = 4096
    """Above what a batch job opens at once, or four requests for 1024 answers each. With prompts of
    8,000 tokens it is about a gigabyte, and at one answer a second more than an hour of waiting."""
    queue_timeout: Annotated[
        Seconds | None, Meta(description="Seconds a request may wait before it gets 503.")
    ] = None
    running_timeout: Annotated[
        Seconds | None,
        Meta(description="Seconds an answer may take from its start before it gets 503."),
    ] = None
    watchdog_timeout: Annotated[
        float,
        Meta(
            description="Seconds without progress until the engine is stuck, more than its longest "
            "step takes; 0: never.",
            ge=0,
        ),
    ] = 300.0
    shutdown_timeout: Annotated[
        float, Meta(description="Seconds that running answers may take after SIGTERM.", ge=0)
    ] = 10.0
    http_timeout: Annotated[
        float,
        Meta(description="Seconds a client may take to send a head, or more of a body.", gt=0),
    ] = 30.0
    keep_alive_timeout: Annotated[
        float, Meta(description="Seconds an idle connection is kept.", gt=0)
    ] = 75.0
    """Longer than the minute that proxies keep theirs: then it is they who close, and no request
    meets a connection that is being closed."""
    max_connections: Annotated[
        AtLeastOne | None,
        Meta(description="Most connections at once; by default what files allow."),
    ] = None
    metrics_names: Annotated[
        Literal["vllm", "sglang", "both"], Meta(description="Whose names /metrics uses.")
    ] = "vllm"
    log_stats_interval: Annotated[
        float, Meta(description="Seconds between log lines while busy; 0: none.", ge=0)
    ] = 10.0
    log_requests: Annotated[
        bool, Meta(description="Log each answer's id, sizes, times and end; never its text.")
    ] = False
    api_key: Annotated[
        list[NotEmpty],
        Meta(description="A key that clients must send as a bearer token; more than one may do."),
    ] = []
    admin_api_key: Annotated[
        NotEmpty | None,
        Meta(description="The only key for what changes the server: aborting, pausing, flushing."),
    ] = None
    allowed_origins: Annotated[
        list[NotEmpty],
        Meta(description="A web page's origin that browsers may call from; '*' for any."),
    ] = []
    incremental_streaming_output: Annotated[
        bool,
        Meta(description="Stream what is new on /generate, in place of the answer so far."),
    ] = False
    health_generate_timeout: Annotated[
        float,
        Meta(description="Seconds in which /health_generate must see a token.", gt=0, le=3600),
    ] = 20.0

    def without_secrets(self) -> ServerSettings:
        """The same without keys, to be shown."""
        return msgspec.structs.replace(self, api_key=[], admin_api_key=None)


class Given(msgspec.Struct, frozen=True):
    """How a setting was given, where its value alone does not say it."""

    source: Source
    words: str = ""
    """As it was written, where that is not the setting's own name."""
    note: str = ""
    """What is different from what the words mean elsewhere."""


class Bounds(msgspec.Struct, frozen=True):
    """Settings of a server that its engine sees to."""

    max_queued: int | None = None
    running_timeout: float | None = None


UNBOUNDED = Bounds()


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that an engine needs; crosses to the engine's process as JSON."""

    preset: PresetName = "treadle"
    usage: Usage = "offline"
    """What the engine is started for; some presets decide by it."""
    bounds: Bounds = UNBOUNDED
    given: dict[str, Given] = {}
    """Of the settings that did not simply come as arguments, by name."""
    model: ModelSettings = msgspec.field(default_factory=ModelSettings)
    cache: CacheSettings = msgspec.field(default_factory=CacheSettings)
    schedule: ScheduleSettings = msgspec.field(default_factory=ScheduleSettings)
    policy: PolicySettings = msgspec.field(default_factory=PolicySettings)
    order: OrderSettings = msgspec.field(default_factory=OrderSettings)
    runtime: RuntimeSettings = msgspec.field(default_factory=RuntimeSettings)
