package job

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// defaults is a spec with every default; fields without one are empty. The
// defaults that depend on the optimizer's type are in DefaultOptimizer.
func defaults() *Spec {
	return &Spec{
		Data:       Data{Format: FormatLibsvm, Chunk: 1 << 20, MaxValue: 1e9},
		Optimizer:  Optimizer{Type: OptimizerAdagrad, Reduction: ReductionMean},
		Train:      Train{Mode: ModeAsync, Passes: 1, Batch: 64, Shuffle: true, Seed: 1, Window: 1, Evaluate: EvaluatePass, MaxSkipped: 0.01, MaxLossGrowth: 5},
		Shards:     4,
		Queue:      Queue{Lanes: 64, StallTimeout: time.Minute, Speculate: 5 * time.Second, MaxFailures: 3},
		Checkpoint: Checkpoint{Dir: "checkpoints", Interval: 30 * time.Second, Keep: 3},
		Recovery:   Recovery{Policy: PolicyReplay, BarrierTimeout: 30 * time.Second, MemoryWait: 30 * time.Minute},
		LeaseTTL:   10 * time.Second,
		Run:        Run{Pservers: 2, Trainers: 2},
	}
}

// later tells fields that the contract has and this version does not implement.
func later(path string) bool {
	switch path {
	case "init", "data.follow", "model.dim", "model.hidden", "model.classes":
		return true
	}
	return laterOfFeature.MatchString(path)
}

// The values of enumerated fields: those of this version, and later ones.
var (
	formats     = choice{now: []string{FormatLibsvm, FormatCSV, FormatTSV}, later: []string{"vw", "libffm", "parquet", "recordio", "tfrecord"}}
	optimizers  = choice{now: []string{OptimizerSGD, OptimizerMomentum, OptimizerNesterov, OptimizerAdagrad, OptimizerAdam, OptimizerFTRL}}
	schedules   = []string{ScheduleConstant, ScheduleLinear, ScheduleExponential, ScheduleCosine}
	reductions  = choice{now: []string{ReductionMean, ReductionSum}}
	modes       = choice{now: []string{ModeAsync, ModeSync}}
	evaluations = choice{now: []string{EvaluatePass, EvaluateEnd}}
	policies    = choice{now: []string{PolicyReplay, PolicySkip}}
	laterModels = []string{"softmax", "fm", "mlp", "widedeep", "deepfm", "mf"}
	// A feature of models that have several tables.
	laterOfFeature = regexp.MustCompile(`^features\[\d+\]\.(table|dim)$`)
	namePattern    = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)
	schemePrefix   = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*://`)
)

type choice struct{ now, later []string }

func (c choice) check(p *problems, path, value string) {
	switch {
	case slices.Contains(c.now, value):
	case slices.Contains(c.later, value):
		p.add(path, "%s is not implemented in this version", value)
	default:
		p.add(path, "%q is not one of %s%s", value, strings.Join(c.now, ", "), meant(value, slices.Concat(c.now, c.later)))
	}
}

// resolve makes paths absolute.
func (s *Spec) resolve(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("job: %w", err)
	}
	absolute := func(path string) string {
		if path == "" || filepath.IsAbs(path) || schemePrefix.MatchString(path) {
			return path
		}
		return filepath.Join(dir, path)
	}
	for _, list := range [][]string{s.Data.Train, s.Data.Test} {
		for i := range list {
			list[i] = absolute(list[i])
		}
	}
	s.Checkpoint.Dir = absolute(s.Checkpoint.Dir)
	return nil
}

// CheckName tells what is wrong with a name of a job or of a process: each is a
// part of keys.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%q must consist of letters, digits, dots, dashes and underscores, begin with a letter or digit, and have at most 63 of them", name)
	}
	return nil
}

// check finds everything that is impossible, and relations between fields.
func (s *Spec) check(p *problems, o options) {
	if s.Job == "" {
		p.add("job", "missing: the job needs a name")
	} else if err := CheckName(s.Job); err != nil {
		p.add("job", "%v", err)
	}
	s.checkData(p, o)
	s.checkColumns(p)
	s.checkModel(p, o)
	s.Optimizer.check(p)
	modes.check(p, "train.mode", s.Train.Mode)
	evaluations.check(p, "train.evaluate", s.Train.Evaluate)
	between(p, "train.passes", s.Train.Passes, 1, 999_999)
	between(p, "train.batch", s.Train.Batch, 1, 1<<20)
	s.checkSteps(p)
	if s.Train.Window > 1 {
		p.add("train.window", "more than 1 is not implemented in this version")
	}
	between(p, "train.window", min(s.Train.Window, 1), 0, 1)
	if v := s.Train.MaxSkipped; v < 0 || v > 1 {
		p.add("train.max_skipped", "must be a share from 0 to 1, is %v", v)
	}
	if v := s.Train.MaxLossGrowth; v != 0 && v < 1 {
		p.add("train.max_loss_growth", "must be at least 1, or 0 for no limit, is %v", v)
	}
	between(p, "shards", s.Shards, 1, 1024)
	between(p, "queue.lanes", s.Queue.Lanes, 1, 1024)
	atLeast(p, "queue.stall_timeout", s.Queue.StallTimeout, time.Second)
	if s.Queue.Speculate != 0 {
		atLeast(p, "queue.speculate", s.Queue.Speculate, 100*time.Millisecond)
	}
	between(p, "queue.max_failures", s.Queue.MaxFailures, 1, 1000)
	if s.Checkpoint.Dir == "" || schemePrefix.MatchString(s.Checkpoint.Dir) {
		p.add("checkpoint.dir", "must be a directory")
	}
	atLeast(p, "checkpoint.interval", s.Checkpoint.Interval, 100*time.Millisecond)
	if s.Checkpoint.Keep == 1 {
		p.add("checkpoint.keep", "must be at least 2: the older one is there for when the newest does not load")
	} else {
		between(p, "checkpoint.keep", s.Checkpoint.Keep, 2, 100)
	}
	policies.check(p, "recovery.policy", s.Recovery.Policy)
	atLeast(p, "recovery.barrier_timeout", s.Recovery.BarrierTimeout, 100*time.Millisecond)
	if s.Recovery.MemoryWait != 0 {
		atLeast(p, "recovery.memory_wait", s.Recovery.MemoryWait, time.Second)
	}
	atLeast(p, "lease_ttl", s.LeaseTTL, 2*time.Second)
	between(p, "run.pservers", s.Run.Pservers, 1, 1000)
	between(p, "run.trainers", s.Run.Trainers, 1, 1000)
}

// adjust gives the fields their defaults that depend on the mode.
func (t *Train) adjust(places map[string]place) {
	if _, given := places["train.window"]; !given && t.Mode == ModeSync {
		t.Window = 0
	}
}

// checkSteps finds what does not fit the mode.
func (s *Spec) checkSteps(p *problems) {
	if _, given := p.places["train.staleness"]; given {
		between(p, "train.staleness", s.Train.Staleness, 1, 1<<20)
	}
	if s.Train.Mode != ModeSync {
		return
	}
	if s.Train.Staleness > 0 {
		p.add("train.staleness", "is for mode async: in mode sync no value is older than a step")
	}
	if _, given := p.places["train.window"]; given && s.Train.Window > 0 {
		p.add("train.window", "must be 0 in mode sync, where values are always fresh")
	}
}

func (s *Spec) checkData(p *problems, o options) {
	if len(s.Data.Train) == 0 {
		p.add("data.train", "missing: nothing to train on")
	}
	for i, entry := range s.Data.Train {
		checkPath(p, fmt.Sprintf("data.train[%d]", i), entry, o.checkFiles)
	}
	for i, entry := range s.Data.Test {
		checkPath(p, fmt.Sprintf("data.test[%d]", i), entry, o.checkFiles)
	}
	formats.check(p, "data.format", s.Data.Format)
	if s.Data.Chunk < 1 {
		p.add("data.chunk", "must be at least 1 byte, is %s", s.Data.Chunk)
	}
	between(p, "data.max_bad_records", s.Data.MaxBadRecords, 0, math.MaxInt32)
	if v := s.Data.MaxValue; v < 1 || v > math.MaxFloat32 {
		p.add("data.max_value", "must be from 1 to %.3g, is %v", math.MaxFloat32, v)
	}
}

func checkPath(p *problems, path, entry string, exists bool) {
	switch {
	case schemePrefix.MatchString(entry):
		p.add(path, "%s: object storage is not implemented in this version", entry)
	case exists:
		if _, err := os.Stat(entry); err == nil {
			return
		}
		if found, err := filepath.Glob(entry); err != nil || len(found) == 0 {
			p.add(path, "%s: no such file, directory or match", entry)
		}
	}
}

func (s *Spec) checkModel(p *problems, o options) {
	switch kind := s.Model.Type; {
	case kind == "":
		p.add("model.type", "missing: the job needs a model")
	case o.models == nil || slices.Contains(o.models, kind):
		if !namePattern.MatchString(kind) {
			p.add("model.type", "%q is no name", kind)
		}
	case slices.Contains(laterModels, kind):
		p.add("model.type", "%s is not implemented in this version", kind)
	default:
		p.add("model.type", "%q is not one of %s%s", kind, strings.Join(o.models, ", "), meant(kind, o.models))
	}
	if _, given := p.places["model.bits"]; given {
		between(p, "model.bits", s.Model.Bits, 1, 63)
	}
}

func between(p *problems, path string, value, low, high int) {
	switch {
	case value < low:
		p.add(path, "must be at least %d, is %d", low, value)
	case value > high:
		p.add(path, "must be at most %d, is %d", high, value)
	}
}

func atLeast(p *problems, path string, value, low time.Duration) {
	const high = 24 * time.Hour
	switch {
	case value < low:
		p.add(path, "must be at least %v, is %v", low, value)
	case value > high:
		p.add(path, "must be at most %v, is %v", high, value)
	}
}
