package job

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// OptimizerSettings is an optimizer with every setting resolved. The zero value
// of a setting that the type does not have is the only one that it may have.
type OptimizerSettings struct {
	// Type is sgd, momentum, nesterov, adagrad, adam, ftrl or count.
	Type string `json:"type"`
	// LearningRate scales every step; ftrl's α.
	LearningRate float64 `json:"learning_rate,omitempty"`
	// Epsilon is added outside the root (adagrad, adam).
	Epsilon float64 `json:"epsilon,omitempty"`
	// InitialAccumulator is where the sum of squares starts (adagrad).
	InitialAccumulator float64 `json:"initial_accumulator,omitempty"`
	// Momentum is the part of the velocity that is kept (momentum, nesterov).
	Momentum float64 `json:"momentum,omitempty"`
	// Beta1 and Beta2 are the parts of adam's two means that are kept.
	Beta1 float64 `json:"beta1,omitempty"`
	Beta2 float64 `json:"beta2,omitempty"`
	// Beta is ftrl's β, added to the root of the sum of squares.
	Beta float64 `json:"beta,omitempty"`
	// L1 and L2 scale the penalties.
	L1 float64 `json:"l1,omitempty"`
	L2 float64 `json:"l2,omitempty"`
	// ClipValue bounds each element of a gradient, ClipNorm the norm of the
	// gradient of the parameter in one push to a shard. 0: no bound.
	ClipValue float64 `json:"clip_value,omitempty"`
	ClipNorm  float64 `json:"clip_norm,omitempty"`
	// Schedule changes the learning rate over time.
	Schedule ScheduleSettings `json:"schedule,omitzero"`
}

// ScheduleSettings say how the learning rate changes with the number of batches
// that a shard has counted.
type ScheduleSettings struct {
	// Type is constant (or empty), linear, exponential or cosine.
	Type string `json:"type,omitempty"`
	// Steps is the length of the schedule in batches, after the warm-up.
	Steps int `json:"steps,omitempty"`
	// Decay is what exponential multiplies the rate with in Steps batches.
	Decay float64 `json:"decay,omitempty"`
	// Final is the part of the rate that linear and cosine end with.
	Final float64 `json:"final,omitempty"`
	// Warmup is the number of batches in which the rate rises to its full value.
	Warmup int `json:"warmup,omitempty"`
}

// DefaultOptimizer is an optimizer with its default settings, for models that
// set some of them. An unknown type has none.
func DefaultOptimizer(kind string) OptimizerSettings {
	s := OptimizerSettings{Type: kind}
	switch kind {
	case OptimizerSGD:
		s.LearningRate = 0.01
	case OptimizerMomentum, OptimizerNesterov:
		s.LearningRate, s.Momentum = 0.01, 0.9
	case OptimizerAdagrad:
		s.LearningRate, s.Epsilon = 0.1, 1e-10
	case OptimizerAdam:
		s.LearningRate, s.Epsilon, s.Beta1, s.Beta2 = 0.001, 1e-8, 0.9, 0.999
	case OptimizerFTRL:
		s.LearningRate, s.Beta = 0.1, 1
	}
	return s
}

// setting is one numeric setting: its place, the types that have it, and its
// bounds, which it must keep as a float32 too.
type setting struct {
	name   string
	value  *float64
	of     []string
	bounds bounds
}

type bounds uint8

const (
	natural  bounds = iota // not below 0
	positive               // above 0
	fraction               // above 0 and below 1
)

// problem says what is wrong with a value, or nothing.
func (b bounds) problem(x float64) string {
	y := float32(x)
	switch ok := y-y == 0 && (x == 0 || y != 0); {
	case b == natural && (!ok || y < 0):
		return fmt.Sprintf("must not be below 0 (and fit a float32), is %v", x)
	case b == positive && (!ok || y <= 0):
		return fmt.Sprintf("must be above 0 (and fit a float32), is %v", x)
	case b == fraction && (!ok || y <= 0 || y >= 1):
		return fmt.Sprintf("must be above 0 and below 1 (also as a float32), is %v", x)
	}
	return ""
}

// settings are all the numeric settings; learning_rate is the first.
func (s *OptimizerSettings) settings() []setting {
	all := []string{OptimizerSGD, OptimizerMomentum, OptimizerNesterov, OptimizerAdagrad, OptimizerAdam, OptimizerFTRL}
	return []setting{
		{"learning_rate", &s.LearningRate, all, positive},
		{"epsilon", &s.Epsilon, []string{OptimizerAdagrad, OptimizerAdam}, natural},
		{"initial_accumulator", &s.InitialAccumulator, []string{OptimizerAdagrad}, natural},
		{"momentum", &s.Momentum, []string{OptimizerMomentum, OptimizerNesterov}, fraction},
		{"beta1", &s.Beta1, []string{OptimizerAdam}, fraction},
		{"beta2", &s.Beta2, []string{OptimizerAdam}, fraction},
		{"beta", &s.Beta, []string{OptimizerFTRL}, positive},
		{"l1", &s.L1, []string{OptimizerSGD, OptimizerAdagrad, OptimizerFTRL}, natural},
		{"l2", &s.L2, all, natural},
		{"clip_value", &s.ClipValue, all, natural},
		{"clip_norm", &s.ClipNorm, all, natural},
	}
}

// Validate reports everything that is impossible about resolved settings.
func (s OptimizerSettings) Validate() error {
	if !slices.Contains(optimizers.now, s.Type) && s.Type != OptimizerCount {
		return fmt.Errorf("the unknown optimizer %q", s.Type)
	}
	var wrong []error
	note := func(name, why string) {
		if why != "" {
			wrong = append(wrong, fmt.Errorf("optimizer setting %s: %s", name, why))
		}
	}
	for _, x := range s.settings() {
		switch {
		case slices.Contains(x.of, s.Type):
			note(x.name, x.bounds.problem(*x.value))
		case *x.value != 0:
			note(x.name, noSuchSetting(s.Type))
		}
	}
	if s.ClipValue != 0 && s.ClipNorm != 0 {
		note("clip_norm", bothClips)
	}
	s.Schedule.problems(s.Type, func(name string) bool { return s.Schedule.has(name) }, note)
	return errors.Join(wrong...)
}

const bothClips = "clip_value is given too, and only one of the two can hold"

func noSuchSetting(kind string) string { return kind + " has no such setting" }

// has tells whether a field has a value.
func (s ScheduleSettings) has(name string) bool {
	switch name {
	case "type":
		return s.Type != ""
	case "steps":
		return s.Steps != 0
	case "decay":
		return s.Decay != 0
	case "final":
		return s.Final != 0
	}
	return s.Warmup != 0
}

// maxSteps bounds a schedule's lengths: float64 counts them exactly.
const maxSteps = 1 << 53

// problems tells what is wrong with the schedule of an optimizer; given says
// which fields were written.
func (s ScheduleSettings) problems(optimizer string, given func(name string) bool, note func(name, why string)) {
	length := func(name string, n, low int) {
		if n < low || n > maxSteps {
			note("schedule."+name, fmt.Sprintf("must be from %d to 2^53 batches, is %d", low, n))
		}
	}
	if optimizer == OptimizerFTRL || optimizer == OptimizerCount {
		for _, name := range []string{"type", "steps", "decay", "final", "warmup"} {
			if given(name) {
				note("schedule."+name, optimizer+" sets the rate of each coordinate itself and has no schedule")
			}
		}
		return
	}
	kind := s.Type
	if kind == "" && !given("type") {
		kind = ScheduleConstant
	}
	if !slices.Contains(schedules, kind) {
		note("schedule.type", fmt.Sprintf("%q is not one of %s%s", kind, strings.Join(schedules, ", "), meant(kind, schedules)))
		return
	}
	fields := map[string][]string{
		"steps": {ScheduleLinear, ScheduleExponential, ScheduleCosine},
		"decay": {ScheduleExponential}, "final": {ScheduleLinear, ScheduleCosine},
	}
	takes := func(name string) bool { return slices.Contains(fields[name], kind) }
	for _, name := range []string{"steps", "decay", "final"} {
		if given(name) && !takes(name) {
			note("schedule."+name, fmt.Sprintf("the schedule %s has no such setting", kind))
		}
	}
	if takes("steps") {
		length("steps", s.Steps, 1)
	}
	if takes("decay") {
		note("schedule.decay", fraction.problem(s.Decay))
	}
	if takes("final") && !(s.Final >= 0 && s.Final <= 1) {
		note("schedule.final", fmt.Sprintf("must be from 0 to 1, is %v", s.Final))
	}
	length("warmup", s.Warmup, 0)
}

// settings are those of the section, as a parameter has them.
func (o Optimizer) settings() OptimizerSettings {
	return OptimizerSettings{
		Type: o.Type, LearningRate: o.LearningRate, Epsilon: o.Epsilon, InitialAccumulator: o.InitialAccumulator,
		Momentum: o.Momentum, Beta1: o.Beta1, Beta2: o.Beta2, Beta: o.Beta, L1: o.L1, L2: o.L2,
		ClipValue: o.ClipValue, ClipNorm: o.ClipNorm, Schedule: ScheduleSettings(o.Schedule),
	}
}

// adjust fills the defaults that depend on the optimizer.
func (o *Optimizer) adjust(given map[string]place) {
	standard := DefaultOptimizer(o.Type)
	for name, at := range map[string]struct{ to, from *float64 }{
		"learning_rate": {&o.LearningRate, &standard.LearningRate},
		"epsilon":       {&o.Epsilon, &standard.Epsilon},
		"momentum":      {&o.Momentum, &standard.Momentum},
		"beta1":         {&o.Beta1, &standard.Beta1},
		"beta2":         {&o.Beta2, &standard.Beta2},
		"beta":          {&o.Beta, &standard.Beta},
	} {
		if _, ok := given["optimizer."+name]; !ok {
			*at.to = *at.from
		}
	}
}

// normalise leaves one form for one meaning.
func (s *Schedule) normalise() {
	if s.Type == ScheduleConstant {
		s.Type = ""
	}
}

// check finds what is impossible about the section.
func (o Optimizer) check(p *problems) {
	optimizers.check(p, "optimizer.type", o.Type)
	reductions.check(p, "optimizer.reduction", o.Reduction)
	if !slices.Contains(optimizers.now, o.Type) {
		return // whose settings they are is not known
	}
	given := func(name string) bool {
		_, ok := p.places["optimizer."+name]
		return ok
	}
	note := func(name, why string) {
		if why != "" {
			p.add("optimizer."+name, "%s", why)
		}
	}
	s, standard := o.settings(), DefaultOptimizer(o.Type)
	defaults := standard.settings()
	for i, x := range s.settings() {
		switch {
		case !slices.Contains(x.of, o.Type):
			if given(x.name) {
				note(x.name, noSuchSetting(o.Type))
			}
			continue
		case x.bounds == natural && (*defaults[i].value > 0 || given(x.name) && strings.HasPrefix(x.name, "clip_")):
			x.bounds = positive // 0 would stand for the default, or for no bound
		}
		note(x.name, x.bounds.problem(*x.value))
	}
	if given("clip_value") && given("clip_norm") {
		note("clip_norm", bothClips)
	}
	s.Schedule.problems(o.Type, func(name string) bool { return given("schedule." + name) }, note)
}

// Rate is the learning rate of the batch before which so many were counted.
// The formulas are in docs/pserver.md.
func (s OptimizerSettings) Rate(step int64) float64 {
	at := s.Schedule
	t, warmup := float64(step), float64(at.Warmup)
	if t < warmup {
		return s.LearningRate * ((t + 1) / warmup)
	}
	t -= warmup
	length := float64(at.Steps)
	part := math.Min(t/length, 1)
	switch at.Type {
	case ScheduleLinear:
		return s.LearningRate * (1 - float64((1-at.Final)*part))
	case ScheduleExponential:
		return s.LearningRate * math.Pow(at.Decay, t/length)
	case ScheduleCosine:
		return s.LearningRate * (at.Final + float64((1-at.Final)*((1+math.Cos(math.Pi*part))/2)))
	}
	return s.LearningRate
}
