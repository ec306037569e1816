//! Planted faults for the gates. Each gate is shown to fail with a fault that is switched on in shipping code.
//!
//! Code with a planted fault calls [`on`]. Without the cargo feature `faults`, `on` is the constant `false` and the
//! branch is removed. With the feature, a test switches one fault on for the duration of a closure:
//!
//! ```
//! # #[cfg(feature = "faults")]
//! # {
//! use xtrain_tensor::faults::{self, Fault};
//! faults::with(Fault::GreedyTieTakesLast, || assert!(faults::on(Fault::GreedyTieTakesLast)));
//! # }
//! ```
//!
//! The switch is thread-local, so tests on other threads are not affected. Code that moves work to other threads
//! captures [`current`] and runs the work inside [`Carried::enter`], as the thread pool of a device does.
use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

macro_rules! faults {
    ($($variant:ident $what:literal)* ; $($in_kernel:ident $wrong:literal)*) => {
        /// A fault that can be switched on. Its name is the variant in kebab case.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Fault {
            $(#[doc = $what] $variant,)*
            $(#[doc = $wrong] $in_kernel,)*
        }

        impl Fault {
            /// Every fault.
            pub const ALL: &[Fault] = &[$(Fault::$variant,)* $(Fault::$in_kernel,)*];

            /// The faults of CUDA kernels. They are planted in `kernels/*.cu` by `XT_FAULT`, which is false except on
            /// the emulator.
            pub const IN_KERNELS: &[Fault] = &[$(Fault::$in_kernel,)*];

            /// What goes wrong.
            pub const fn description(self) -> &'static str {
                match self {
                    $(Fault::$variant => $what,)*
                    $(Fault::$in_kernel => $wrong,)*
                }
            }
        }
    };
}

faults! {
    SamplerF32RunningSum "the sampler picks a token by a running sum of f32 probabilities"
    LongWordsNotSplit "the training of a tokenizer does not split long words"
    LastOfRepeatedKeys "of a key that a JSON object has twice, the last value counts"
    BlocksOfTurnsCounted "the blocks of a turn of weight 0 are found by their number alone"
    MisspelledRolesUntrained "a role that is nearly that of the assistant is another role"
    RepeatedFilesUnreported "data files that are named twice give no warning"
    SkippedLinesUnreported "damaged lines of a log are skipped without a warning"
    OtherDirectoryAwaited "xtrain watch waits for a run in a directory of something else"
    NarrowLineNotCut "a line of progress is as long in a narrow terminal as in a wide one"
    ChangedRewardUnreported "a resume with another reward command gives no warning"
    ColdTemperatureIsGreedy "a temperature that is 0 in f32 is greedy"
    ToolsStayText "tools that a line has as text are passed to the template as text"
    WeightsOfTurnsIgnored "answers of weight 0 are trained"
    RoundedIntegersAccepted "integers of a prompt's line that are rounded are accepted"
    DivergedForwardUnnamed "a forward pass that is not finite ends a step with the error of the operation"
    MissingRewardsUnreported "a step whose completions all have no reward gives no warning"
    LogGapUnreported "a resume does not report that its log ends before the checkpoint"
    FirstParameterNamed "the error of a gradient or a weight that is not finite names the first parameter"
    OtherProcessTakenAsFinite "only the slices of the own process are checked for values that are not finite"
    RowsVisitedByBlock "the logits of a row that a loss visits come with the index of the row in its block"
    RowsOfBlocksShared "the rows of a later block of a loss are stored over those of the first block"
    CacheOfAllProcesses "the memory estimate of a process counts the KV cache of all processes"
    FreeBlocksKept "the free blocks of a full GPU are not returned to it"
    ReadLayerNotCounted "the host memory of an offloaded cache does not include the layer that is read"
    WatermarkFlagIgnored "--watermark does not reach the engine"
    AdamBetasExchanged "the optimizer of a training run takes train.beta2 for beta1 and the reverse"
    NumberLimitsIgnored "numbers of the section grpo below 0 are accepted"
    BosOfConfigFirst "an empty prompt begins with the BOS token of config.json, not with that of the tokenizer"
    PrefixUseNotRecorded "a page of a prefix that was found again is evicted as if it had not been used"
    FirstLineOfAnswerCompared "an answer of several lines is compared with the first line of a completion"
    PromptLearntWithTurn "the text of an assistant turn begins where the turn before it ends"
    GreedyTieTakesLast "greedy sampling returns the last of several equal maxima"
    ConstraintAfterFilters "the mask of a constraint removes tokens after top-k, top-p and min-p instead of before"
    ConstraintStale "the mask of a constraint is that of the state before the last token"
    DraftIgnoresConstraint "the rows of drafted tokens are sampled without the mask of the constraint"
    LexerNotRenewed "the sequences of a constraint share a lexer that is full"
    EndOfTextAllowedEarly "a constraint allows an end of text before its text is complete"
    LogProbIgnoresConstraint "the processed log-probability of a token is that over all tokens, not over those that the constraint allows"
    MaximumOfMaskedChunkKept "the chunks of a masked row of logits keep the maxima of the row before the mask"
    IntegerWeightRounded "the integer weight of a token is rounded to the nearest integer, not truncated"
    WordWithOneTokenSkipped "a word of a token mask with a single bit counts as empty"
    LastUnitOfBlockNotReached "the last unit of a block of integer weights belongs to the token after the block"
    UpdateForgetsConstraint "the update of a run with a constraint takes log-probabilities over all tokens"
    RngIgnoresSequenceId "the address of a random number omits the id of the sequence"
    RngUsesFirstSequenceId "all random numbers of a step use the id of the first sequence"
    SingleRowSumReversed "a linear map of a single row sums its inputs in reverse order"
    YarnAttentionIgnored "a given attention factor of YaRN is replaced by the default"
    WrittenLinesRemoved "a file of lines that cannot be completed is removed"
    ConfigBeforeLock "a run without a checkpoint is configured before it is locked"
    TrainedRunStartedAgain "a run that another process has trained meanwhile starts at the first step"
    PreparationsInRate "the time before the first step counts towards the rate of a job"
    FirstEvaluationUntimed "the time of the evaluation before the first step of GRPO is not recorded"
    InputsCheckedLate "the prompts and the constraint of GRPO are read after its base model is trained"
    RewardProcessesOutlive "reward programs outlive a process that the second signal ends"
    PromptOfOtherGroupKept "a slot for a sequence that forks its prompt keeps the rows of another one"
    UnseenPositionsGathered "attention over int8 reads slots of positions that no row sees"
    KeptSetsUnchecked "a message is read as a set of tokens without a check"
    CausalFieldIgnored "a config.json may ask for attention to later positions"
    OriginalPositionsMayDiffer "a config.json may have two different original context lengths"
    GgufComputationsIgnored "a GGUF file may ask for computations that the model does not have"
    SchemaIntegersRounded "a JSON schema may have integers that its parser rounds"
    EmptySchemaCompiled "a JSON schema without any text is found in the rollout"
    LargeCountsIgnored "counts of flags that a configuration cannot hold are ignored"
    PreallocationMergesGroups "preallocation takes all completions for those of one group"
    PromptInFreeSlotKept "planning does not free the prompts that the cache keeps in free slots"
    VerdictLostWithReader "a check whose output has no reader ends with exit code 0"
    SkippedStepEndsOnPolicy "after a step without a gradient, the weights are taken for updated"
    ReferenceOfEarlierStartKept "a run that starts again keeps the reference model of its first start"
    FailedPassNotAbandoned "the rows of a pass whose head has failed stay in the cache"
    FirstChunkByMaximum "attention replaces its state after a first chunk of keys whose scores overflow"
    TopKCutToU32 "a GPU samples with the low 32 bits of top-k"
    HeldOutFileMayChange "a resume of GRPO may add or remove the file of held-out prompts"
    LengthsHaveABest "plots mark a best length of the completions of an evaluation"
    RoundedNumbersUnnoted "an export to GGUF does not note the numbers that it rounds"
    ChunkOfNanIgnored "a NaN among 128 logits without a finite one is not seen"
    SessionBeforeLock "a run of GRPO writes its session before it has the lock"
    LockedImportRemoved "an import removes the directory of another import"
    CompletionsOfFailedStepLost "completions that end in the step of a failing sequence are lost"
    TextOfTruncatedPromptKept "a truncated prompt keeps its whole text"
    RewardLogsShared "reward programs with several processes share logs"
    PartOfRecordKept "a part of a record stays in a file of events"
    FileSizeLimitEndsProcess "a write beyond the limit of file sizes ends the process without a message"
    CompleteRunStoresChanges "a resumed run of GRPO without a step left stores changed settings"
    DtypeOfRolloutIgnored "a replay does not compare its dtype with that of the completions"
    FinalZeroNotAdded "the sums of attention omit the final + 0"
    MaskOffByOne "a row does not attend to its own position"
    WindowOffByOne "a row attends to one position more than its window"
    LastRowOfWindowWithoutGradient "the gradient of a key omits the last row whose window contains it"
    OnlyFirstPageCompared "sequences that share their first page are treated as sharing all keys"
    CrossDocumentAttention "the documents packed in a sample form one sequence"
    DocumentBoundariesLost "packed data loses the document boundaries of a window"
    OwnSlotsOfOtherPages "an attention on a GPU writes the keys of its rows although the pages have changed since that was decided"
    StaleIndexList "a GPU uses a cached index list of the same length with other values"
    StaleGraphArguments "a CUDA graph is launched with the arguments of the previous step"
    StaleStepIndices "a GPU that runs several steps ahead keeps the positions and slots of the first step"
    GpuNormWithoutEps "the kernel of a norm on a GPU omits eps"
    TokensAfterStopKept "an engine that runs ahead keeps the tokens after the end of a sequence"
    FollowerNotSeparated "a sequence keeps the rows of another one although their tokens differ"
    EqualSequencesComputedApart "sequences of a group with equal tokens are computed one by one"
    CopyOnWriteSkipped "a GPU changes a tensor in place although another tensor shares its buffer"
    RecomputeFromWrongInput "a recomputed layer starts from the embedding instead of its own input"
    MicroBatchSubtotal "a weight gradient adds the total of a micro-batch instead of its chunks"
    VocabChunkSubtotal "dx adds the total of a vocabulary chunk instead of its chunks of 256"
    EmbeddingDenormalFlushed "a model without f32 master weights embeds a bf16 denormal as zero"
    TiedEmbeddingSingleAccumulator "both uses of a tied embedding table add to one gradient"
    PrefetchedPieceReordered "the first piece of a prefetched tensor is processed after the others"
    PrefixCacheFalseHit "a prompt reuses a cached page of a prompt with other tokens"
    DroppedCacheWrite "the key and value of position 2 are not written in the last layer"
    SinksRotatedByText "the keys of a sinks cache are rotated by their positions in the text instead of those in the cache"
    SinkOverwritten "the ring of a sinks cache takes the slots of the sinks too"
    SinksWindowOneTooMany "a row over a sinks cache attends to one token more than the window has"
    SinksForkLostRows "a sequence forks a prompt from a sinks cache that has overwritten a part of it"
    SinksStagedRowsLeaked "the new rows of a pass over a sinks cache are never freed"
    Int8CodesTruncated "the codes of an int8 cache are truncated instead of rounded to the nearest integer"
    Int8ScaleOfNeighbour "a head vector of an int8 cache is stored with the scale of the vector before it"
    PageOffByOne "the first position of a page is written to the previous page"
    PositionOffByOne "a row after the prompt uses the position after its own"
    ResumeLosesOptimizerState "a resumed run starts with zero moments"
    ResumeLosesStep "a resumed run starts at step 0, with bias-correction powers of 1"
    ResumeLosesRngState "a resumed run continues with seed 0 instead of its saved random state"
    CheckpointDirectoryNotSynced "a save reports success before the name of the checkpoint is durable"
    CheckpointRenameBeforeSync "a checkpoint gets its final name before its files are durable"
    LossTopPStopsEarly "top-p of the loss stops at the token whose running sum equals the budget instead of the one that exceeds it"
    LossMinPIsStrict "min-p of the loss removes a token whose probability equals the bound"
    GivenKeptSetIgnored "the loss applies its filters to rows whose kept set is given"
    LossForgetsMinP "the loss applies top-k and top-p of the sampler, but not its min-p"
    RewardStdOfPopulation "the standard deviation of rewards divides by n instead of n - 1"
    ClippedTokenGradientKept "a clipped token keeps its policy gradient"
    MaskedTokensCounted "the divisor of a policy loss counts the tokens outside the loss mask"
    WeightsChangeBeforeUpdate "a weight changes between the rollouts of a step and its update"
    CompletionRetokenized "the update reads the tokens of the completion's text"
    UpdateForgetsTopP "the update of a run with top-p takes log-probabilities without it"
    RewardOfTheNeighbor "each completion gets the reward of the one before it"
    EndOfCompletionNotCompared "completions with one beginning get one reward"
    PrefixGradientOverwritten "the key and value gradients of a shared prefix are those of its last sequence alone"
    SimilarTokensShareRows "branches of a training example share the rows of tokens that differ in their last bit only"
    SharedLossWeightDropped "a loss row that several branches share has the loss weight of the first one"
    SharedLossBonusDropped "a loss row that several branches share has the entropy bonus of the first one"
    SharedLossRowOfOtherKeptSet "branches with a common row share its loss row although their kept sets differ"
    SharedLossRowOfOtherTarget "branches with a common row share its loss row although their targets differ"
    BranchAtFirstPosition "the rows of a branch of a training example start at position 0"
    RandomNumbersCountFromPrompt "the position of a random number counts from the end of the prompt, which a later turn extends"
    AppendedTokensTrained "the loss mask of a completion counts appended tokens as sampled"
    GroupPromptNotShared "each completion of a group computes the prompt itself"
    ZeroWeightsTrained "completions whose loss weights are all zero enter the backward pass"
    ReferenceMixSwapped "an update of the reference model swaps alpha and 1 - alpha"
    ResumeForgetsReferenceUpdate "a resumed run starts with the initial reference model"
    RewardsShuffled "the rewards of a batch are permuted among its completions"
    GpuWindowOffByOne "a row on a GPU attends to one position more than its window"
    GpuWindowOfAllButOneIgnored "a GPU ignores a window that hides one position"
    QuantBlockSplit "a tensor of quantized blocks is read in pieces that end inside a block"
    WidestSimdNotDetected "the widest instruction set of the machine is not detected"
    PortableSumReversed "a linear map in portable code sums its inputs in reverse order"
    HeldPrefixEvicted "the prefix cache evicts a page that a sequence holds"
    DuplicatePrefixHeld "a sequence holds its own copy of a page that the prefix cache keeps"
    HeldPageWrittenInPlace "a sequence writes to a page that a snapshot or another sequence holds, instead of to a copy"
    SnapshotNeverReleased "a released snapshot keeps its pages"
    SnapshotPageFreedTwice "a released snapshot gives up each of its pages twice"
    SnapshotTokensNotCompared "a sequence starts from a snapshot of other tokens"
    RowsRestoredToOtherPage "rows from a file or from the offload store are written to the page before or after theirs"
    PrefixWeightsNotCompared "the rows of a prefix file are used with other weights"
    TensorChecksumNotCompared "the checksums of the tensors of a prefix file are not compared"
    OffloadedLayerShifted "the rows of an offloaded layer are loaded into the slots after theirs"
    OffloadedRowsNotWritten "new rows of an offloaded layer are not written to its file, so that it is loaded without them"
    PrefetchedLayerTaken "the layer that was read ahead is taken for the one that is needed"
    OffloadedLayerUnchecked "the checksums of an offloaded layer are not compared"
    SnapshotEngineNotCompared "an engine accepts the snapshot of another engine"
    PriorityColumnIgnored "the priority of a line of a prompt file does not reach the scheduler"
    OffloadedBlockReused "a block of the offload store is free before its rows are read"
    PreemptedMemberForksAgain "a preempted completion of a group forks its prompt again and samples its first token again"
    SingleRowRopeOffByOne "RoPE rotates the only row of a pass by the position after its own"
    WeightPackedAgain "a matrix is packed again at every use"
    ValuesChangeAfterWeights "a value of a reused batch changes after its loss weights are computed"
    WeightsFromStaleValues "the loss weights of a reused batch come from the values of the sampler, not from the current ones"
    YarnAlwaysTruncates "the ends of YaRN's ramp are rounded although `truncate` is false"
    TrailingPieceWithoutTargetKept "a piece of a long document without a target is kept if an earlier piece has one"
    ResumeForgetsBestLoss "a resumed run starts without the lowest validation loss of the interrupted one"
    ResumeIgnoresRecord "a resumed run does not compare its config.toml with the checkpoint"
    ResumeRestartsData "a resumed run reads the training data from the start"
    AdamwPowersStop "the powers of AdamW's beta1 and beta2 no longer change once beta1^t is below 0.05"
    OnlyFirstEndTokenTrained "the training mask knows the first end-of-text token of a tokenizer only"
    MeanOfMicroBatchMeans "the loss of a step is the mean of the means of its micro-batches"
    WeightedStepTakesMean "a step with loss weights replaces them by those of a mean"
    FilesNotSynced "the real file system reports success without syncing a file or a directory"
    RunNamesNotSynced "the names of a run's directory and files are not synced"
    OutputNameNotSynced "the name of an output file is not synced"
    TrainerDirectoryNotSynced "the names of the trainer's files in a checkpoint are not synced"
    GateGradientIsUps "the backward pass of SwiGLU exchanges the gradients of gate and up"
    RopeDivisorsRenamed "divisors of RoPE frequencies in a GGUF file become the nearest llama3 rule"
    KQuantMinimumIgnored "the values of a K-quant block with minima omit the minimum"
    QuantFifthBitIgnored "the values of Q5_0 and Q5_1 blocks omit the fifth bit of each element"
    BosNotAdded "a prompt begins without the token that its tokenizer adds"
    DocumentBosNotAdded "documents of training data begin without the token that the tokenizer adds"
    BlocksEndInWhitespace "a block of a text file ends within several line breaks"
    ContinuationGetsPrefix "text that continues other text is encoded with the space that begins a text"
    TokenFileNotVerified "a packed token file is opened without checking its tokens"
    PackedWeightFreed "the memory of a packed weight is freed with it and not kept for the next one"
    TensorHandleFreed "the reference count of a tensor is freed with it and not kept for the next tensor"
    SmallFilesNotVerified "the tokenizer of a checkpoint is read without checking it against the manifest"
    StopTextWithinToken "a stop text is found only inside the text of one token"
    HeldTextLost "text that was held back as the beginning of a stop text is lost at the end of a completion"
    LostEventsIgnored "the text of a completion is that of the tokens whose events arrived"
    OtherTapeAccepted "a value of another tape is differentiated as the value of this tape with its number"
    SurplusAfterStopTextKept "a completion keeps the tokens after the one that completes a stop text"
    BiasesNotInEstimate "a dry run does not count the biases of the initial model"
    ReferenceNotRequired "GRPO with a KL term runs without a reference model"
    VerifyIgnoresStopTexts "the verification of GRPO regenerates turns beyond their stop texts"
    StopTextInReward "rewards of GRPO get the stop text that ends a completion"
    StepMemoryKept "each batch of GRPO keeps a mebibyte of memory"
    SurplusContinued "a turn of GRPO is continued with the tokens that the engine sampled after its stop text"
    LossChunkForgetsFirstColumn "a later chunk of the vocabulary numbers its columns from 0 when a filter removes logits"
    ValueGradientFlushOfQueries "the gradient of values in bf16 flushes tiny results only if products with queries are tiny"
    YarnRampEndsAtLastPair "the ramp of YaRN ends at the last pair of a head at the latest"
    WsdDecayStartsInWarmup "a decay that is longer than the steps after the warm-up starts in the warm-up"
    LlamaBiasRowsNotInterleaved "the query and key biases of a llama file have the row order of Hugging Face"
    ScoresBeginWithPass "each line of a pass of `score` gets the log-probabilities of the first one"
    ScoredMaskIgnored "`score` counts tokens that a reward program appended"
    OlderInitialModelUnreported "a run with rewards starts from an older checkpoint of --init without a word"
    KeysWithoutEffectUnreported "settings of GRPO without effect are accepted without a note"
    PassedStepsAccepted "a resume accepts fewer steps than are done"
    TruncatedScoresUnmarked "scores of truncated conversations are not marked"
    ScoresOfOtherDtypeUnnoted "completions of another dtype or a lossy cache are scored without a warning"
    EndOfRunNotStored "a resume with the number of steps that are done does not store it"
    LastTokenOfChoiceLeftOut "the log-probability of a choice leaves out its last token"
    LastOfEqualChoices "of choices with equal log-probabilities the last one is chosen"
    PartOfStepLeftOut "a number of epochs leaves out the windows that do not fill a step"
    HeldOutDetailsOfGreedy "the lengths and the single rewards of an evaluation are those of the greedy completions"
    HeldOutPromptsShareNumbers "completions of two held-out prompts have the same random numbers"
    AppendedTokensInEntropy "the mean entropy of a step divides by appended tokens too"
    ReplayKeepsTurns "replay compares no completion after one that differs in a turn before its last"
    LaunchNotRecorded "the launch recorder misses the launches of one block"
    LastGradientOfGroupLost "a launch of several weight gradients leaves out the last one"
    InputGradientNotFused "input gradients are rounded, and SwiGLU is differentiated, by kernels of their own"
    WeightGradientsNotShared "each weight gradient has a launch of its own although most multiprocessors are idle"
    MergeTripsNotCounted "the latency chain of a kernel leaves out the results that its blocks share"
    PersistentTilesNotCounted "the estimate of a product by wgmma takes the number of its blocks for that of its tiles"
    SharedInputCountedTwice "the log of launches counts the input of several weight gradients once for each of them"
    SampleEndsWithinMap "the last stage of a sample in a weight gradient by wgmma has rows of the next sample in place of zeros"
    GradientsOfOtherSamplesJoined "weight gradients over different samples share a launch"
    UpProjectionNotCounted "the log of launches counts one matrix product for gate and up"
    AccumulationStartsAnew "a second accumulation of a gradient on a GPU starts from zero again"
    SharedZerosOverwritten "an accumulation on a GPU writes into zeros that another tensor shares"
    KernelOfOtherHeadSize "single-row attention in bf16 runs the kernel of half the head size"
    KeysRoundedToChunks "the log of launches counts 64 keys for the last chunk of a row, however many it sees"
    ProductsNotSplit "one block computes all chunks of an output tile although most multiprocessors are idle"
    NewKeysOfOthersUnseen "an attention writes the keys of its rows although a row sees the new key of another"
    SharedChunkPartlyVisible "a chunk of keys is shared by rows of which one sees only a part of it"
    SharedChunkBehindWindow "a chunk of keys is shared with a later row from which the window hides a part of it"
    PoolCountedAsRead "the log of launches counts the pools of keys and values as read when new ones are written"
    ForceReplacesAnyDirectory "--force of export and import replaces a directory with other files"
    OverwriteWithoutForce "a command replaces an existing output file without --force"
    BestWeightsOfLastEvaluation "train.keep_best keeps the weights of the last evaluation"
    ResumeIgnoresData "a resumed run does not compare its training data with data.json"
    ReportOmitsLastValue "a report omits the last value of each curve"
    BosDoubled "a text that begins with the BOS token gets another one"
    StrictIgnored "--strict accepts an older checkpoint than the newest one"
    LaunchNotAwaited "XTRAIN_CUDA_SYNC=1 does not wait for a kernel"
    GraphsNotDisabled "XTRAIN_CUDA_GRAPHS=0 launches graphs"
    LockOfCopiesKept "the lock of a run is held until every copy of its descriptor is closed"
    FiniteTailNotChecked "the check for NaN and infinity omits the elements after the last whole part of a long tensor"
    OriginalPositionsOfModelIgnored "RoPE scaling ignores an original context length that is a field of the model"
    HeadSizeOfOtherFamilies "a Qwen3 model without a head size has that of the other families"
    QuantHalvesToEven "Q8_0 rounds halves to even"
    NonFiniteIndexInPiece "the index of a weight that is not finite counts from the start of its piece"
    EvaluationLimitExclusive "an evaluation omits the window that ends exactly at its limit"
    ShardLimitExclusive "a file of weights of exactly the maximum size is split"
    ContextBeforeLength "a completion that reaches its length and the context limit ends by the context"
    TokensOfSkippedStepLost "a step without a gradient does not count the tokens of its batch"
    RewardsRunWhereResumed "reward programs run in the working directory of a resume"
    PartsShareAdvantages "the later steps of a generation batch train with the advantages of the first one"
    PartsShareKeptSets "the later steps of a generation batch keep the tokens that the completions of the first one kept"
    DivisorOfWholeBatch "a loss that divides by the tokens of a batch does not divide them by its steps"
    ReplacementsShareRewards "all groups that replace others in a batch have the rewards of the first of them"
    DiscardedGroupsFromZero "the rollouts number discarded groups from 0"
    SamplesOfStepsShareIds "the samples of all steps of a training run have the same ids"
    WholeFirstTurn "the prompt of samples after fine-tuning is not limited to the context"
    ByteOrderMarkKept "the byte order mark at the beginning of a text file is part of the text"
    ParametersOfLineIgnored "the parameters in the line of a prompt are ignored"
    StopTextsInOrderOfFile "a resumed rollout takes the stop texts of a line for those of another one"
    NohupNotNoticed "a closed terminal stops a command that nohup started"
    StopTextsOfAllSequences "a sequence with its own stop texts ends at those of the others"
    InputReplacedByOutput "with --force, an output file replaces a file that the command reads"
    FileOfRunReplaced "with --force, an output file replaces the log or a checkpoint of a run"
    ZombieTakenAsRunning "the temporary file of a process that has ended is kept until its parent waits for it"
    KilledRolloutLost "a resume does not find the completions of a rollout that was killed"
    KeptTopTokensNotChecked "a resumed rollout keeps completions with another number of most probable tokens"
    RefusedCheckpointCounted "a damaged checkpoint counts as one of those that are kept"
    TopTokensInOtherOrder "of tokens with equal logits, the last comes first among the most probable ones"
    TopTokensOfForksLost "the first tokens of sequences that share a prompt have no most probable tokens"
    LinkToNewFileReplaced "an output file replaces a link to a file that does not exist yet"
    ReplayIgnoresTopTokens "replay does not compare the most probable tokens"
    WriterGoesOnAfterSignal "an export goes on while a signal removes its files"
    UnfinishedOutputKept "a signal leaves the temporary file of a command"
    HangupEndsProcess "a closed terminal ends a command, which loses what it has computed"
    DirectoryAsOutputFile "the path of a new directory is accepted for an output file"
    OtherRunShownByQuickstart "quickstart shows the results of a run of another command"
    NewerFileReplaced "an output file replaces one that another command has written since the start"
    UnrenamedLinesRemoved "an output file of lines that cannot get its name is removed"
    MaskedCompletionsInDivisor "a loss that divides by the tokens of a batch counts those of masked completions"
    QuantNibblesSwapped "a quantized matrix in memory has the codes of each two neighboring depths in the wrong order"
    QuantScaleOfFirstHalf "both halves of a quantized block in memory have the scale of the first half"
    PairHalvesExchanged "the operands of vdpbf16ps have the later element of a pair in the high half"
    DenormalsKept "attention in bf16 keeps denormals of keys and values"
    LastBlockNotTransposed "gradients of keys and values leave out the weights of the last 32 rows of a tile"
    PairedSlotsExchanged "the values of attention have the slots of a pair exchanged"
    LastTileRowLost "a product of a few rows with AMX leaves out its last row"
    PairedColumnsNotRestored "outputs of a few rows keep the order of the paired columns"
    KeysOfFirstTile "the scores of a few rows take the keys of the first 16 slots of a block for those of the next 16"
    SharedSumsLost "rows that are continued after the chunks they share start without the sums of these"
    SharedSumsOfNextRow "rows that are continued after the chunks they share start with the sums of the next row"
    FirstOwnChunkSkipped "rows that are continued after the chunks they share leave out the first of the others"
    GapOfWindowsRead "rows of one sequence read the values between their windows, which are unspecified"
    NextHeadsNotPaired "the outputs of a few rows take the values of the first kv heads for those of the next pass"
    PairSumNotFlushed "the additions that end a block of vdpbf16ps keep denormals"
    PairExponentOfFirstRow "a tile of vdpbf16ps takes the smallest exponent of its first row for that of all rows"
    PairOldSumsUnchecked "a tile of vdpbf16ps takes old sums for multiples of 2^-126"
    DraftAcceptedOneTooMany "the drafted token after the last accepted one is accepted as well"
    DraftRowsNotRewound "the KV cache keeps the rows of rejected drafted tokens"
    DraftTakenForSampled "the first rejected drafted token takes the place of the sampled one"
    DraftPositionOffByOne "the random numbers of drafted rows have the address of the next position"
    DraftKeptAfterEnd "drafted tokens after the end of a sequence are kept"
    DraftHistoryIgnored "the repetition penalty of a drafted row does not cover the drafted tokens before it"
    DraftNeverPaused "a sequence whose drafted tokens are rejected keeps drafting"
    DraftModelRowsStale "the draft model keeps the rows of tokens that were rejected"
    DraftVocabNotChecked "a draft model with another vocabulary is accepted"
    PriorityIgnored "waiting sequences are admitted in the order of submission, whatever their priority"
    PriorityNeverAges "a waiting sequence does not gain priority with time"
    WatermarkIgnored "a sequence is admitted into the pages that the watermark keeps free"
    GrowthOfOneSequence "the automatic watermark counts the growth of one of the running sequences"
    RecordedBestRemoved "the best weights that the last checkpoint records are removed when better ones are saved"
    ReplacedDirectoryLost "a directory that a killed --force moved aside is not restored"
    WatchOmitsLastLine "watch and report omit the last finished line of a log"
    PlotForgetsSmoothing "the legend of a plot does not say that its curve is a moving mean"
    WatermarkCountsTokens "the watermark counts tokens where the cache hands out whole pages"
    DraftModelCatchesUpAtOnce "a draft model computes all rows that a long prompt lacks in one step"
    ShardsAddedInSequence "the totals of shards are added one after the other, not as a tree"
    ShardBoundsRoundedUp "the boundaries between shards are rounded up"
    LossOfKeptSetsNotAdded "a loss that returns the kept sets is not added"
    OffsetsNotChecked "an infinite offset of a quantized block counts as finite"
    LayerBuffersNotCounted "the bytes of a cache count one of the two buffers of offloaded layers"
    SlotsOfLargerCacheKept "a cache that offloads layers keeps the slots of a larger one"
    MaskOfTailIgnored "a mask does not apply to the last tokens, fewer than 32"
    SlidingWindowFlagUnchecked "a value of use_sliding_window that is not a boolean is false"
    LargestTokenIdExceeded "a tokenizer may have one id above the limit"
    LossOfShardsAveraged "the loss of a step is the mean of the losses of its shards"
    SliceUpdatedTwice "a process updates its slice of the parameters twice"
    StaleWeightsOnOneProcess "one process keeps the old weights of the first parameter"
    SquaresInOrderOfProcesses "the squares of rows are added in the order of the processes and not in walk order"
    EarlierShardsNotSent "a process sends the embedding gradients of its last shard only"
    KernelsBehindTransfer "kernels that are queued beside a transfer between GPUs start after its end"
    AddedBeforeReceived "totals from other GPUs are added before they have arrived"
    WeightsOfNextProcess "each GPU stores the new weights of a process in the slice of the next one"
    NormSummedByProcess "each process sums the squares of its slice, and these sums are added"
    MomentsOfOneProcessSaved "a checkpoint of several processes has the moments of the first one only"
    LossSummedByProcess "an evaluation adds the sums of the losses of each process"
    OffloadFileIsFree "the estimate of offloading leaves out what a file costs"
    ProcessesNotCompared "processes with different configurations train one run"
    PromptsOfOneProcessLost "the completions of the last process are missing"
    MinusZeroRanksBelow "the loss ranks a logit of -0 below those of +0"
    ExistingParentNotSynced "the name of an existing directory is not made durable before a run is written in it"
    PromptCachedAtItsEnd "a prompt serves later ones only after its own sequence has ended"
    EmptyListEndsItsParent "indented JSON has no line break between an empty list or object and the end of its parent"
    NegativeBonusWithoutEntropy "the gradient of a negative entropy bonus on a GPU reads the entropy before it is computed"
    VerifyAcceptsMissingRows "a verification holds although rows of logits were not compared"
    AppendLeavesNoRoomToSample "a completion with room for one token may be continued"
    GroupsNumberedByProcess "each process numbers the completions of its groups from the first id of the batch"
    RewardsShiftedOnOtherProcesses "all processes but the first one take each reward for that of the next completion"
    ValuesOfOtherProcessesLost "the log-probabilities that other processes computed are taken as 0"
    FailedConnectionNotSent "a process whose GPU fails to connect does not tell the others"
    ExchangeNotInEstimate "the estimate of the memory of several processes omits the slices that a step sums and updates"
    KeptSetsOfProcessesSwapped "the kept tokens of the first process are taken for those of the last one, and the other way round"
    SkippedExamplesNotCounted "examples without a loss weight do not count in the division of a step into shards"
    VerifiedPartLost "a verification omits the settings of the last process"
    LogitsOfProcessesNotCompared "processes do not compare their logits of the training forward pass"
    DivisorLimitExclusive "a table of RoPE divisors for the largest head is refused"
    GgufPadBeginsTexts "the ids of a GGUF file that begin and pad a text are exchanged"
    TrainerWithoutControlDropped "a checkpoint with optimizer states and without control.bin loads as one without a trainer"
    PagesOfLargerCacheKept "a cache in the memory of a larger one has all pages of that one"
    PartialNameOfDevice "an interrupted command reports that a device has the name of an incomplete file"
    PromptsNumberedByProcess "each process numbers the prompts of a rollout from 0"
    CacheOfAbsentRequests "the memory check of few requests counts as many sequences as may run"
    DraftsPenalizedAlone "drafts with a repetition penalty are sampled on a GPU, without a penalty of the drafted tokens"
    CommandPanics "xtrain tokenize panics"
    OneCheckpointTooManyKept "a save leaves one older checkpoint more than train.keep"
    GgufAlignmentIgnored "the data of a GGUF file begin at a multiple of 32, whatever alignment its metadata name"
    IdsOfDiscardedUsedAgain "the ids of completions that were announced and discarded are those of the next batch"
    MinPNotOnDevice "a GPU samples without min-p"
    SinksDecodedAhead "a GPU decodes several steps between synchronizations over a sinks cache"
    SharedPageNotMissing "a sequence with a shared last page lacks no page for its next position"
    WindowOfFirstLayer "all layers have the sliding window of the first one"
    ChecksumOfLastPiece "the checksum of a tensor is that of its last piece"
    InvalidBytesHeld "a stream holds bytes that begin no character until the next token"
    OtherWeightsExported "a directory with other weights than those of an export passes for an exported model"
    StartsOfBranchesAccepted "an example with branches may also have starts of documents, which are ignored"
    StaleTensorMap "the tensor maps of a launch are those of an earlier one with as many matrices"
    TensorMapsFreedInStep "a full cache of tensor maps frees those of the operation that is being issued"
    TrainingNotSubmitted "a training step submits no kernel before it synchronizes"
    ListOfQueuedKernelReplaced "the index list of a kernel that has not run yet is replaced by another one"
    TorchDtypeOfSource "an exported config.json keeps the torch_dtype of its source"
    RepeatedEndTokensTrained "all end-of-text tokens after an assistant turn are targets, not only the first one"
    QuantDividesByScale "Q8_0 divides values by the scale instead of multiplying them by its inverse"
    OffloadLimitRoundedUp "the limit of an offload file is rounded up to whole blocks"
    DeadEndIsComplete "a text that no token may continue is complete although it may not end"
    SaveNeedsMultiple "a run saves after a batch only if the batch ends at a multiple of grpo.save_every"
    LogLineCut "the log of a reward program has only the first 400 bytes of a line"
    TimeLimitPerReply "the time limit of a batch of rewards starts again at each reply"
    KeptCompletionsNotCompared "a resumed rollout keeps the completions of other weights"
    KeptIdNotChecked "a resumed rollout keeps the completions of other sample ids"
    ResumedIndexNotMapped "a resumed rollout numbers its completions by their place among those that it generates"
    PartOfGroupKept "a resumed rollout keeps prompts that lack a completion"
    IncompletePromptsLost "a resumed rollout that is interrupted loses the completions of prompts that lacked one"
    OlderPartialReplaced "a failed write replaces the completions of an earlier command"
    OutOfOrderCompletionsLost "an interrupted command loses the completions that finished before earlier ones"
    FullContextNotTruncated "a completion that fills the context is not marked as truncated"
    TokenizerEndTokensIgnored "a reply of a chat does not end at the end-of-text tokens of the tokenizer"
    AppendedTokensInDivisor "a loss that divides by the tokens of a batch counts appended tokens"
    FirstStepInF32 "the first steps of a run compute in f32, whatever train.dtype is"
    EndTokenListedTwice "an end-of-text token that two keys of a GGUF file name is listed twice"
    PagesAddedWithoutMemory "a cache has new pages although their memory could not be allocated"
    AnswersOfPromptTrained "the answers of a prompt that is a list of messages are trained, too"
    ValidationFilesIgnored "the validation loss is that of training tokens, although data.val_files names files for it"
    EvaluatedTextTruncated "`eval` of a fine-tuned run uses the beginning of each text only"
    RolloutsOfLaterStepsKept "a resumed GRPO run keeps completions of steps after its checkpoint"
    EndTokensOfConfigIgnored "a tokenizer does not know the end-of-text tokens that only config.json lists"
    LowestLossOfOtherEvaluations "a resume that changes the evaluations keeps the lowest validation loss"
    EvaluationOfManyRows "an evaluation has more rows in a pass than a training step"
    ReplayIgnoresLogprobs "`replay` compares the processed log-probabilities only"
    TiedHeadNotCompared "the head that the weights of a tied model hold in addition may differ from the table"
    NumberOfElementsWraps "the number of elements of a shape is computed modulo 2^64"
    ; // in kernels
    DecodeChunksMergedInReverse "decode attention merges the chunks of a row from the last to the second"
    BlockCounterNotReset "the last block does not reset the counter of its blocks"
    NextKeyAttended "attention in f32 reads one key after the position of a row"
    LastKeyOfChunkUnmasked "attention in bf16 does not mask the last key of a chunk that is visible up to that key"
    LastRowOfWindowSkipped "dk and dv omit the last row for which the last key of a tile is inside the window"
    ChunkSumKept "an f32 product starts a chunk of 256 from the sum of the previous chunk"
    HeadsAtFirstPosition "a kernel that normalizes and rotates heads rotates all rows by the position of the first one"
    LastPairOfChunkNotSummed "the gradient of a QK-norm's gain leaves out the last head of each chunk"
    StagedPairsOverwritten "a block stages the next heads while its threads still add the previous ones"
    KeptUpIsGate "the up projection that a SwiGLU keeps for its gradient is the gate"
    GradientOfRoundedSwiGlu "the gradient of SwiGLU in the epilogue of a product reads dy rounded to bf16"
    LastTileOfProductSkipped "the last block of a weight gradient computes the first tile again"
    StepBarrierMissing "the threads of an f32 product read the operands of a step without waiting for each other"
    StageNotAwaited "a bf16 product reads a stage before its copy is complete"
    TailOfVectorNotCopied "a copy of fewer than eight bf16 values omits the last one"
    TailOfBufferNotCopied "a copy of a buffer omits the bytes after the last 16"
    TailOfTensorNotUpdated "AdamW does not update the last elements of a tensor whose length is not a multiple of four"
    SumOfEarlierWarpsLost "the running sum of a block that samples on a GPU omits the sums of earlier warps"
    BinsNotReset "the histogram of a filter on a GPU starts from that of the previous launch"
    HistogramOfFirstBlock "the bin of a filter on a GPU is chosen before other blocks have added their counts"
    ListOfFirstBlock "the cutoff of a filter on a GPU is chosen before other blocks have written their ranks"
    PickBeforeOtherBlocks "a token is picked on a GPU before other blocks have written their sums"
    GreedyTakesLaterTie "greedy sampling on a GPU returns a later one of equal maxima"
    GreedyBeforeOtherBlocks "greedy sampling on a GPU chooses before other blocks have written their maxima"
    StepCountedByFirstRow "greedy sampling on a GPU counts a step before all rows have read the counter"
    TailOfWeightNotCast "the last elements of a matrix keep their old values when all weights are cast"
    ScaleOfFirstNormedRow "a product that norms its rows scales all of them by the rms of the first"
    ChunkGroupsReversed "blocks that share the chunks of a product are added in reverse order"
    NewValueNotStored "an attention that writes the heads of its rows leaves their values out of the pool"
    QueryRowsOfKeyStride "write_heads reads and writes rows of queries at the distance of rows of keys"
    LastLaneNotSummed "a sum over the lanes of a warp omits the last lane"
    UpBiasNeedsGateBias "SwiGLU omits the bias of up if the gate has none"
    ResidualDenormalFlushed "a residual sum reads a denormal of the stream as zero"
    KeptSetForgetsFirstColumn "a given kept set is read from bit 0 for a later chunk of the vocabulary"
    TopPSumOfReciprocal "top-p on a GPU adds the weights of logits that were multiplied by the reciprocal of the temperature"
    FilterStopsEarly "top-k and top-p on a GPU keep the token whose running sum equals the budget"
    TailOfLoopSkipped "the last elements of a strided loop are omitted if their number is one less than a batch of loads"
    RowsOfAnIdReversed "the gradient of an embedding adds the rows of an id from the last to the first"
    SharedQueriesOfFirstRow "the rows that share a chunk of keys all have the queries of the first one"
    BlockArrivesEarly "a block arrives at a counter before its threads have written their results"
    KernelInt8CodesTruncated "the kernel that quantizes keys and values truncates instead of rounding"
    KernelInt8ScaleOfNeighbour "attention over an int8 cache reads the scale of the head before on a GPU"
    BlockArrivalRelaxed "a block arrives at a counter without releasing its writes and acquiring those of others"
    ChunkSumsNotAwaited "the sums of the next chunks of a bias's gradient replace those that are being added"
    LastChunksNotSearched "the last chunks of a vocabulary above 131,072 have no part in the pick of a token on a GPU"
    KernelInt8NanSkipped "the kernel that quantizes keys and values ignores a NaN when it finds the largest magnitude"
    WgmmaStepDiffers "wgmma leaves out the last step of a product"
    WgmmaStageNotAwaited "wgmma reads a stage before the copy into it is complete"
    WgmmaChunkSumKept "a product by wgmma starts a chunk of 256 from the sum of the previous chunk"
    RowsOfOperandOverlap "the descriptor of an operand of wgmma places groups of eight rows half over each other"
    HalvesOfOperandOverlap "the descriptor of an operand of a gradient by wgmma places its second 64 rows half over the first"
    WgmmaStartsFromZero "a gradient by wgmma is not added to the earlier sum"
    StageOverwritten "the producer of a product by wgmma fills a stage that its consumers still read"
    StageReleasedEarly "a consumer releases a stage before wgmma has read it"
    BarriersNotFenced "bulk copies may not see the initialization of the barrier at which they arrive"
    QuadNotTransposed "the lanes that store a row of bf16 outputs of wgmma do not exchange them"
    SiluDivisorNotTested "SwiGLU on a GPU uses the quotient without branches for every gate"
    SmallChunksSwapped "the sums of chunks that two warpgroups computed are added in reverse order"
    GradientOfLastKeysOnly "the gradient of queries by wgmma is that of the last chunk of keys"
    ExpOutOfRange "attention by wgmma uses exp without tests for every score"
    QuotientOutOfRange "attention in bf16 uses the quotient without branches for every sum"
    GradientOfMaskedScores "the gradient of attention in bf16 includes scores that the mask hides"
    WgmmaAssumed "a kernel image without machine code for sm_90a reports that it has wgmma"
}

/// The name in kebab case.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, c) in format!("{self:?}").char_indices() {
            let dash = if i > 0 && c.is_ascii_uppercase() { "-" } else { "" };
            write!(f, "{dash}{}", c.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Fault, String> {
        let found = Fault::ALL.iter().copied().find(|fault| fault.to_string() == name);
        found.ok_or_else(|| format!("no fault is named {name:?}"))
    }
}

thread_local! {
    static ACTIVE: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Whether a fault is switched on in this thread. Always `false` without the feature `faults`.
#[inline(always)]
pub fn on(fault: Fault) -> bool {
    active() == Some(fault)
}

/// The fault that is switched on in this thread. Always `None` without the feature `faults`.
#[inline(always)]
pub(crate) fn active() -> Option<Fault> {
    if cfg!(feature = "faults") { ACTIVE.get() } else { None }
}

/// Runs `work` with a fault switched on in this thread, and in threads that receive it through [`current`].
#[cfg(feature = "faults")]
pub fn with<R>(fault: Fault, work: impl FnOnce() -> R) -> R {
    Carried(Some(fault)).enter(work)
}

/// The fault of a thread, to be passed to another thread. Empty without the feature `faults`.
#[derive(Debug, Clone, Copy)]
pub struct Carried(Option<Fault>);

/// The fault of this thread.
#[inline(always)]
pub fn current() -> Carried {
    Carried(active())
}

impl Carried {
    /// Runs `work` with the carried fault, then restores the previous one, also after a panic.
    #[inline(always)]
    pub fn enter<R>(self, work: impl FnOnce() -> R) -> R {
        struct Restore(Option<Fault>);
        impl Drop for Restore {
            fn drop(&mut self) {
                ACTIVE.set(self.0);
            }
        }
        let _restore = cfg!(feature = "faults").then(|| Restore(ACTIVE.replace(self.0)));
        work()
    }
}

#[cfg(all(test, feature = "faults"))]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_on_inside_its_closure_only_and_in_its_thread_only() {
        let (one, other) = (Fault::ALL[0], Fault::ALL[1]);
        with(one, || {
            assert!(on(one) && !on(other));
            with(other, || assert!(on(other) && !on(one)));
            assert!(on(one));
            let carried = current();
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(!on(one)));
                scope.spawn(|| carried.enter(|| assert!(on(one))));
            });
        });
        assert!(!on(one));
    }

    #[test]
    fn a_panic_switches_the_fault_off() {
        let fault = Fault::ALL[0];
        let end = std::panic::catch_unwind(|| with(fault, || std::panic::resume_unwind(Box::new(()))));
        assert!(end.is_err() && !on(fault));
    }

    #[test]
    fn names_are_unique_and_parse_back() {
        for &fault in Fault::ALL {
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        assert_eq!("no-such-fault".parse::<Fault>(), Err("no fault is named \"no-such-fault\"".into()));
    }
}
