package job_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/job"
)

// optimizerOf resolves the optimizer of a spec with the section's text.
func optimizerOf(t *testing.T, section string) job.OptimizerSettings {
	t.Helper()
	ps, err := job.Resolve(parse(t, least+"optimizer: "+section+"\n"), []job.Parameter{{Name: "a"}})
	require.NoError(t, err)
	text, err := json.Marshal(ps)
	require.NoError(t, err)
	var back job.Parameters
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, ps, back, "every setting is in the record")
	return ps.List[0].Optimizer
}

func TestOptimizerDefaults(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"sgd", "momentum", "nesterov", "adagrad", "adam", "ftrl"} {
		want := job.DefaultOptimizer(kind)
		require.NoError(t, want.Validate())
		require.Equal(t, want, optimizerOf(t, "{type: "+kind+"}"))
	}
	require.Equal(t, job.OptimizerSettings{Type: "adam", LearningRate: 0.001, Epsilon: 1e-8, Beta1: 0.9, Beta2: 0.999}, job.DefaultOptimizer("adam"))
	require.Equal(t, job.OptimizerSettings{Type: "ftrl", LearningRate: 0.1, Beta: 1}, job.DefaultOptimizer("ftrl"))
	require.Equal(t, job.OptimizerSettings{Type: "momentum", LearningRate: 0.01, Momentum: 0.9}, job.DefaultOptimizer("momentum"))
}

func TestOptimizerSettings(t *testing.T) {
	t.Parallel()
	for section, want := range map[string]job.OptimizerSettings{
		"{type: adam, beta1: 0.5, beta2: 0.9, epsilon: 1, l2: 0.1, clip_norm: 3}": {
			Type: "adam", LearningRate: 0.001, Beta1: 0.5, Beta2: 0.9, Epsilon: 1, L2: 0.1, ClipNorm: 3},
		"{type: ftrl, learning_rate: 2, beta: 0.1, l1: 1, l2: 2, clip_value: 4}": {
			Type: "ftrl", LearningRate: 2, Beta: 0.1, L1: 1, L2: 2, ClipValue: 4},
		"{type: sgd, l1: 1, schedule: {type: linear, steps: 10, final: 0.5, warmup: 3}}": {Type: "sgd", LearningRate: 0.01, L1: 1,
			Schedule: job.ScheduleSettings{Type: "linear", Steps: 10, Final: 0.5, Warmup: 3}},
		"{type: nesterov, momentum: 0.5, schedule: {type: exponential, steps: 10, decay: 0.5}}": {Type: "nesterov", LearningRate: 0.01, Momentum: 0.5,
			Schedule: job.ScheduleSettings{Type: "exponential", Steps: 10, Decay: 0.5}},
		"{l1: 1, schedule: {type: constant, warmup: 7}}": {Type: "adagrad", LearningRate: 0.1, Epsilon: 1e-10, L1: 1,
			Schedule: job.ScheduleSettings{Warmup: 7}},
		"{type: momentum, l1: 0}": {},
	} {
		if want.Type == "" {
			_, err := job.ParseSpec([]byte(least+"optimizer: "+section), "/d", nil)
			require.EqualError(t, err, "line 4: optimizer.l1: momentum has no such setting")
			continue
		}
		require.Equal(t, want, optimizerOf(t, section))
	}
	// What means the same is the same job.
	require.Empty(t, job.Diff(parse(t, least), parse(t, least+"optimizer: {schedule: {type: constant}}")))
	require.Equal(t, "optimizer.schedule.warmup: 0 in the job, 5 here",
		job.Diff(parse(t, least), parse(t, least, "optimizer.schedule.warmup=5")))
}

// TestOptimizerRefused: whatever an optimizer cannot do is an error that names
// the field and its line.
func TestOptimizerRefused(t *testing.T) {
	t.Parallel()
	const fits, part = " (and fit a float32), is ", "must be above 0 and below 1 (also as a float32), is "
	for section, want := range map[string]string{
		"{type: ftlr}":                                     `optimizer.type: "ftlr" is not one of sgd, momentum, nesterov, adagrad, adam, ftrl; did you mean ftrl?`,
		"{type: count}":                                    `optimizer.type: "count" is not one of sgd, momentum, nesterov, adagrad, adam, ftrl`,
		"{type: sgd, momentum: 0.9}":                       "optimizer.momentum: sgd has no such setting",
		"{momentum: 0}":                                    "optimizer.momentum: adagrad has no such setting",
		"{type: sgd, beta: 1}":                             "optimizer.beta: sgd has no such setting",
		"{type: adagrad, beta1: 0.5}":                      "optimizer.beta1: adagrad has no such setting",
		"{type: ftrl, beta2: 0.5}":                         "optimizer.beta2: ftrl has no such setting",
		"{type: ftrl, epsilon: 1}":                         "optimizer.epsilon: ftrl has no such setting",
		"{type: momentum, epsilon: 1}":                     "optimizer.epsilon: momentum has no such setting",
		"{type: adam, initial_accumulator: 0}":             "optimizer.initial_accumulator: adam has no such setting",
		"{type: adam, l1: 1}":                              "optimizer.l1: adam has no such setting",
		"{type: nesterov, l1: 1}":                          "optimizer.l1: nesterov has no such setting",
		"{type: momentum, momentum: 1}":                    "optimizer.momentum: " + part + "1",
		"{type: momentum, momentum: 0}":                    "optimizer.momentum: " + part + "0",
		"{type: momentum, momentum: 0.99999999999}":        "optimizer.momentum: " + part + "0.99999999999",
		"{type: adam, beta1: -0.5}":                        "optimizer.beta1: " + part + "-0.5",
		"{type: adam, beta2: 1.5}":                         "optimizer.beta2: " + part + "1.5",
		"{type: adam, epsilon: 0}":                         "optimizer.epsilon: must be above 0" + fits + "0",
		"{type: ftrl, beta: 0}":                            "optimizer.beta: must be above 0" + fits + "0",
		"{type: ftrl, l1: -1}":                             "optimizer.l1: must not be below 0" + fits + "-1",
		"{l2: 1e-60}":                                      "optimizer.l2: must not be below 0" + fits + "1e-60",
		"{l2: 1e60}":                                       "optimizer.l2: must not be below 0" + fits + "1e+60",
		"{clip_value: 0}":                                  "optimizer.clip_value: must be above 0" + fits + "0",
		"{clip_norm: -1}":                                  "optimizer.clip_norm: must be above 0" + fits + "-1",
		"{clip_norm: 1, clip_value: 1}":                    "optimizer.clip_norm: clip_value is given too, and only one of the two can hold",
		"{weight_decay: 1}":                                "optimizer.weight_decay: unknown field",
		"{schedule: cosine}":                               `optimizer.schedule: must be a mapping of fields, not "cosine"`,
		"{schedule: {type: cosin, steps: 4}}":              `optimizer.schedule.type: "cosin" is not one of constant, linear, exponential, cosine; did you mean cosine?`,
		"{schedule: {type: ''}}":                           `optimizer.schedule.type: "" is not one of constant, linear, exponential, cosine`,
		"{schedule: {steps: 4}}":                           "optimizer.schedule.steps: the schedule constant has no such setting",
		"{schedule: {type: constant, final: 0}}":           "optimizer.schedule.final: the schedule constant has no such setting",
		"{schedule: {type: linear}}":                       "optimizer.schedule.steps: must be from 1 to 2^53 batches, is 0",
		"{schedule: {type: cosine, steps: -4}}":            "optimizer.schedule.steps: must be from 1 to 2^53 batches, is -4",
		"{schedule: {type: exponential, steps: 4}}":        "optimizer.schedule.decay: " + part + "0",
		"{schedule: {type: linear, steps: 4, decay: 0.5}}": "optimizer.schedule.decay: the schedule linear has no such setting",
		"{schedule: {type: exponential, steps: 4, decay: 0.5, final: 0.1}}":   "optimizer.schedule.final: the schedule exponential has no such setting",
		"{schedule: {type: linear, steps: 4, final: 1.5}}":                    "optimizer.schedule.final: must be from 0 to 1, is 1.5",
		"{schedule: {warmup: -1}}":                                            "optimizer.schedule.warmup: must be from 0 to 2^53 batches, is -1",
		"{schedule: {warmup: 0.5}}":                                           `optimizer.schedule.warmup: must be a whole number, not "0.5"`,
		"{schedule: {warmpu: 3}}":                                             "optimizer.schedule.warmpu: unknown field; did you mean warmup?",
		"{type: ftrl, schedule: {type: cosine, steps: 5}}":                    "optimizer.schedule.type: ftrl sets the rate of each coordinate itself and has no schedule\nline 4: optimizer.schedule.steps: ftrl sets the rate of each coordinate itself and has no schedule",
		"{type: ftrl, schedule: {warmup: 0}}":                                 "optimizer.schedule.warmup: ftrl sets the rate of each coordinate itself and has no schedule",
		"{type: adam, beta1: 2, beta: 1, schedule: {type: linear, final: 2}}": "optimizer.beta1: " + part + "2\nline 4: optimizer.beta: adam has no such setting\nline 4: optimizer.schedule.steps: must be from 1 to 2^53 batches, is 0\nline 4: optimizer.schedule.final: must be from 0 to 1, is 2",
	} {
		t.Run(section, func(t *testing.T) {
			t.Parallel()
			_, err := job.ParseSpec([]byte(least+"optimizer: "+section), "/d", nil)
			require.EqualError(t, err, "line 4: "+want)
		})
	}
	_, err := job.ParseSpec([]byte(least), "/d", []string{"optimizer.schedule.steps=5"})
	require.EqualError(t, err, "--set optimizer.schedule.steps: the schedule constant has no such setting")
}

// What a model of one's own asks for is checked as strictly.
func TestSettingsAreValidated(t *testing.T) {
	t.Parallel()
	spoil := func(kind string, f func(*job.OptimizerSettings)) error {
		s := job.DefaultOptimizer(kind)
		f(&s)
		return s.Validate()
	}
	for want, err := range map[string]error{
		`the unknown optimizer ""`: job.OptimizerSettings{}.Validate(),
		"optimizer setting learning_rate: must be above 0 (and fit a float32), is NaN":                         spoil("sgd", func(s *job.OptimizerSettings) { s.LearningRate = math.NaN() }),
		"optimizer setting l2: must not be below 0 (and fit a float32), is +Inf":                               spoil("sgd", func(s *job.OptimizerSettings) { s.L2 = math.Inf(1) }),
		"optimizer setting beta: adagrad has no such setting":                                                  spoil("adagrad", func(s *job.OptimizerSettings) { s.Beta = 1 }),
		"optimizer setting learning_rate: count has no such setting":                                           spoil("count", func(s *job.OptimizerSettings) { s.LearningRate = 1 }),
		"optimizer setting clip_norm: clip_value is given too, and only one of the two can hold":               spoil("adam", func(s *job.OptimizerSettings) { s.ClipNorm, s.ClipValue = 1, 1 }),
		"optimizer setting schedule.warmup: count sets the rate of each coordinate itself and has no schedule": spoil("count", func(s *job.OptimizerSettings) { s.Schedule.Warmup = 1 }),
		"optimizer setting schedule.steps: must be from 1 to 2^53 batches, is 0":                               spoil("sgd", func(s *job.OptimizerSettings) { s.Schedule.Type = "linear" }),
		"optimizer setting schedule.final: must be from 0 to 1, is NaN": spoil("sgd", func(s *job.OptimizerSettings) {
			s.Schedule = job.ScheduleSettings{Type: "cosine", Steps: 1, Final: math.NaN()}
		}),
	} {
		require.EqualError(t, err, want)
	}
	require.NoError(t, job.OptimizerSettings{Type: "count"}.Validate())
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	rates := func(s job.ScheduleSettings, steps ...int64) (all []float64) {
		o := job.OptimizerSettings{Type: "sgd", LearningRate: 2, Schedule: s}
		require.NoError(t, o.Validate())
		for _, n := range steps {
			all = append(all, o.Rate(n))
		}
		return all
	}
	for name, tc := range map[string]struct {
		s    job.ScheduleSettings
		at   []int64
		want []float64
	}{
		"constant":            {job.ScheduleSettings{}, []int64{0, 1 << 50}, []float64{2, 2}},
		"warm-up":             {job.ScheduleSettings{Warmup: 4}, []int64{0, 1, 2, 3, 4, 5}, []float64{0.5, 1, 1.5, 2, 2, 2}},
		"linear":              {job.ScheduleSettings{Type: "linear", Steps: 4}, []int64{0, 1, 2, 3, 4, 5, 1 << 60}, []float64{2, 1.5, 1, 0.5, 0, 0, 0}},
		"linear to a part":    {job.ScheduleSettings{Type: "linear", Steps: 2, Final: 0.5}, []int64{0, 1, 2, 3}, []float64{2, 1.5, 1, 1}},
		"exponential":         {job.ScheduleSettings{Type: "exponential", Steps: 2, Decay: 0.25}, []int64{0, 1, 2, 4}, []float64{2, 1, 0.5, 0.125}},
		"cosine":              {job.ScheduleSettings{Type: "cosine", Steps: 4}, []int64{0, 1, 2, 4, 9}, []float64{2, 1 + math.Sqrt2/2, 1, 0, 0}},
		"cosine to a part":    {job.ScheduleSettings{Type: "cosine", Steps: 4, Final: 0.5}, []int64{0, 2, 4}, []float64{2, 1.5, 1}},
		"cosine and warm-up":  {job.ScheduleSettings{Type: "cosine", Steps: 4, Warmup: 2}, []int64{0, 1, 2, 4, 6}, []float64{1, 2, 2, 1, 0}},
		"the longest warm-up": {job.ScheduleSettings{Warmup: 1 << 53}, []int64{0, 1 << 52}, []float64{0x1p-52, 1}},
	} {
		require.InDeltaSlice(t, tc.want, rates(tc.s, tc.at...), 1e-12, name)
	}
	// Between its ends a schedule falls, and is never negative or above the rate.
	rapid.Check(t, func(t *rapid.T) {
		o := job.OptimizerSettings{Type: "sgd", LearningRate: 2, Schedule: job.ScheduleSettings{
			Type:  rapid.SampledFrom([]string{"linear", "exponential", "cosine"}).Draw(t, "type"),
			Steps: rapid.IntRange(1, 1<<53).Draw(t, "steps"),
			Decay: rapid.Float64Range(1e-6, 0.999).Draw(t, "decay"), Final: rapid.Float64Range(0, 1).Draw(t, "final"),
		}}
		a, b := rapid.Int64Range(0, math.MaxInt64).Draw(t, "a"), rapid.Int64Range(0, math.MaxInt64).Draw(t, "b")
		early, late := o.Rate(min(a, b)), o.Rate(max(a, b))
		require.GreaterOrEqual(t, early, late-1e-12)
		require.GreaterOrEqual(t, late, 0.0)
		require.LessOrEqual(t, early, 2.0)
	})
}
