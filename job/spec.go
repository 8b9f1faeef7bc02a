package job

import (
	"math"
	"time"
)

// Spec is everything that a job means: its data, model, optimizer, schedule
// and tolerances. What a process is (its name, addresses, credentials) stands
// in flags instead. A Spec comes from ParseSpec and is not changed afterwards.
//
// Paths in a Spec are absolute: ParseSpec joins relative ones with the
// directory of the spec's file, once, so that every process of the job reads
// the same files wherever it was started.
type Spec struct {
	// Job names the job; every key in etcd lies under /starfish/<job>/.
	Job string `spec:"job"`
	// Data says what is read and how it is cut.
	Data Data `spec:"data"`
	// Features says what becomes of the columns of csv and tsv. Without it
	// every column but label, weight and group is taken.
	Features []Feature `spec:"features,omitempty"`
	// Model says what is trained.
	Model Model `spec:"model"`
	// Optimizer says how gradients change parameters.
	Optimizer Optimizer `spec:"optimizer"`
	// Train says how long and in which batches.
	Train Train `spec:"train"`
	// Shards is the number of parts of every parameter. Default 4.
	Shards int `spec:"shards"`
	// Queue sets the dispatch of chunks.
	Queue Queue `spec:"queue"`
	// Checkpoint says where and how often shards are saved.
	Checkpoint Checkpoint `spec:"checkpoint"`
	// Recovery says what happens after a pserver was lost.
	Recovery Recovery `spec:"recovery"`
	// LeaseTTL is how long a silent process counts as alive. Default 10s, at
	// least 2s.
	LeaseTTL time.Duration `spec:"lease_ttl"`
	// Run is how many processes `starfish run` starts. It is no part of the
	// job's meaning and is not compared between processes.
	Run Run `spec:"run"`
	// places remembers where each field was written, for errors found later.
	places map[string]place
}

// Data is the section `data`.
type Data struct {
	// Train lists files, directories and globs. Required.
	Train []string `spec:"train"`
	// Test lists the files of the evaluation; empty: none.
	Test []string `spec:"test,omitempty"`
	// Format of the files. Default libsvm.
	Format string `spec:"format"`
	// Chunk is the unit of dispatch in input bytes; WholeFile for `file`.
	// Default 1MiB.
	Chunk Bytes `spec:"chunk"`
	// CSV describes the files of the formats csv and tsv.
	CSV CSV `spec:"csv,omitempty"`
	// Label, Weight and Group name columns of csv and tsv. Label is required
	// there.
	Label  string `spec:"label,omitempty"`
	Weight string `spec:"weight,omitempty"`
	Group  string `spec:"group,omitempty"`
	// MaxBadRecords is how many broken records a chunk may have; more of them
	// fail the chunk. Default 0.
	MaxBadRecords int `spec:"max_bad_records"`
	// MaxValue bounds the absolute value of what a record has, after the
	// features' transforms: values, label, weight. A record with a larger one is
	// bad. Default 1e9.
	MaxValue float64 `spec:"max_value"`
}

// Bytes is a size; WholeFile stands for "as large as the file".
type Bytes int64

// WholeFile is the chunk size `file`: each file is one chunk.
const WholeFile Bytes = math.MaxInt64

// Model is the section `model`.
type Model struct {
	// Type names the model: one of the built-in ones, or the name under which
	// a user's own program registers its model. Required.
	Type string `spec:"type"`
	// Bits is the size of the key space: keys are taken modulo 2^Bits. 0 (the
	// field is absent): keys as they are.
	Bits int `spec:"bits,omitempty"`
	// Options are settings of a user's own model; the built-in ones have none.
	Options map[string]string `spec:"options,omitempty"`
}

// Optimizer is the section `optimizer`.
type Optimizer struct {
	// Type is sgd, momentum, nesterov, adagrad, adam or ftrl. Default adagrad.
	// The defaults of each are those of DefaultOptimizer.
	Type string `spec:"type"`
	// LearningRate scales every step; ftrl's α.
	LearningRate float64 `spec:"learning_rate"`
	// Epsilon is added to the root (adagrad, adam).
	Epsilon float64 `spec:"epsilon,omitempty"`
	// InitialAccumulator is where adagrad's accumulator starts. Default 0.
	InitialAccumulator float64 `spec:"initial_accumulator,omitempty"`
	// Momentum is the part of the velocity that is kept (momentum, nesterov).
	Momentum float64 `spec:"momentum,omitempty"`
	// Beta1 and Beta2 are the parts of adam's means that are kept.
	Beta1 float64 `spec:"beta1,omitempty"`
	Beta2 float64 `spec:"beta2,omitempty"`
	// Beta is ftrl's β.
	Beta float64 `spec:"beta,omitempty"`
	// L1 scales the penalty on absolute values (sgd, adagrad, ftrl). Default 0.
	L1 float64 `spec:"l1,omitempty"`
	// L2 scales the penalty on squares. Default 0.
	L2 float64 `spec:"l2,omitempty"`
	// ClipValue bounds each element of a gradient. Default 0: no bound.
	ClipValue float64 `spec:"clip_value,omitempty"`
	// ClipNorm bounds the norm of a parameter's gradient in one push to a
	// shard. Default 0: no bound.
	ClipNorm float64 `spec:"clip_norm,omitempty"`
	// Schedule changes the learning rate over time. Not with ftrl.
	Schedule Schedule `spec:"schedule,omitempty"`
	// Reduction is mean or sum: what is made of the gradients of a batch.
	// Default mean.
	Reduction string `spec:"reduction"`
}

// Schedule is the section `optimizer.schedule`; its fields are explained at
// ScheduleSettings.
type Schedule struct {
	// Type is constant, linear, exponential or cosine. Empty: constant.
	Type string `spec:"type,omitempty"`
	// Steps is required by all but constant.
	Steps int `spec:"steps,omitempty"`
	// Decay is required by exponential.
	Decay float64 `spec:"decay,omitempty"`
	// Final of linear and cosine. Default 0.
	Final float64 `spec:"final,omitempty"`
	// Warmup in batches. Default 0: none.
	Warmup int `spec:"warmup,omitempty"`
}

// Train is the section `train`.
type Train struct {
	// Mode is async (gradients are applied as they arrive) or sync (all trainers
	// take each step together, and their gradients are applied as one). Default
	// async.
	Mode string `spec:"mode"`
	// Staleness bounds, in mode async, by how many steps a trainer may be ahead of
	// the slowest one that has work. Absent: no bound.
	Staleness int `spec:"staleness,omitempty"`
	// Passes over the data. Default 1.
	Passes int `spec:"passes"`
	// Batch is the nominal number of records of one update. Default 64.
	Batch int `spec:"batch"`
	// Shuffle permutes chunks and records. Default true.
	Shuffle bool `spec:"shuffle"`
	// Seed of permutations and initial values. Default 1.
	Seed uint64 `spec:"seed"`
	// Window is how many batches a trainer computes ahead of the answers to
	// its pushes: 0 or 1. Default 1, in mode sync always 0.
	Window int `spec:"window"`
	// Evaluate says when data.test is evaluated: after each pass, or at the end
	// only. Default pass.
	Evaluate string `spec:"evaluate"`
	// MaxSkipped is the share of its batches that a trainer may skip because
	// loss or gradient is not finite; more than that, and than 10, fail the job.
	// 0: none may be. Default 0.01.
	MaxSkipped float64 `spec:"max_skipped"`
	// MaxLossGrowth is how many times the loss of predicting nothing the loss
	// may stay at; above it the job fails. 0: no limit. Default 5.
	MaxLossGrowth float64 `spec:"max_loss_growth"`
}

// Queue is the section `queue`.
type Queue struct {
	// Lanes of a pass; at least as many as trainers is best. Default 64.
	Lanes int `spec:"lanes"`
	// StallTimeout: a chunk whose trainer lives but makes no progress for this
	// long is given to another. Default 60s.
	StallTimeout time.Duration `spec:"stall_timeout"`
	// Speculate: near the end of a pass, a trainer that has nothing to do takes
	// over chunks with which another gets on too slowly: that have shown no
	// progress for this long and for four times as long as it needs for a chunk.
	// Only in mode async. 0: never. Default 5s.
	Speculate time.Duration `spec:"speculate"`
	// MaxFailures is after how many data failures a chunk is quarantined.
	// Default 3.
	MaxFailures int `spec:"max_failures"`
}

// Checkpoint is the section `checkpoint`.
type Checkpoint struct {
	// Dir holds the checkpoint files. Default: `checkpoints` beside the spec.
	Dir string `spec:"dir"`
	// Interval between two saves of a shard, once it is settled. Default 30s.
	Interval time.Duration `spec:"interval"`
	// Keep is how many checkpoints of a shard stay listed, at least 2: the
	// older ones are there for when the newest does not load. Default 3.
	Keep int `spec:"keep"`
}

// Recovery is the section `recovery`.
type Recovery struct {
	// Policy is replay, what a lost pserver had not saved is trained again, or
	// skip: it stays lost, and is counted. Default replay.
	Policy string `spec:"policy"`
	// BarrierTimeout ends the first barrier after a recovery, if not all trainers
	// have come by then; for the mode sync. Default 30s.
	BarrierTimeout time.Duration `spec:"barrier_timeout"`
	// MemoryWait is how long a trainer waits for memory on a pserver that is at its
	// --max-memory before it fails the job. 0: for ever. Default 30m.
	MemoryWait time.Duration `spec:"memory_wait"`
}

// Run is the section `run`.
type Run struct {
	// Pservers that `starfish run` starts. Default 2.
	Pservers int `spec:"pservers"`
	// Trainers that `starfish run` starts. Default 2.
	Trainers int `spec:"trainers"`
}

// The values of enumerated fields.
const (
	FormatLibsvm      = "libsvm"
	FormatCSV         = "csv"
	FormatTSV         = "tsv"
	OptimizerSGD      = "sgd"
	OptimizerMomentum = "momentum"
	OptimizerNesterov = "nesterov"
	OptimizerAdagrad  = "adagrad"
	OptimizerAdam     = "adam"
	OptimizerFTRL     = "ftrl"
	// OptimizerCount is what the model `count` asks for; a spec cannot.
	OptimizerCount      = "count"
	ScheduleConstant    = "constant"
	ScheduleLinear      = "linear"
	ScheduleExponential = "exponential"
	ScheduleCosine      = "cosine"
	ReductionMean       = "mean"
	ReductionSum        = "sum"
	ModeAsync           = "async"
	ModeSync            = "sync"
	EvaluatePass        = "pass"
	EvaluateEnd         = "end"
	PolicyReplay        = "replay"
	PolicySkip          = "skip"
)
