package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"starfish/etcdqueue"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/client"
	"starfish/reader"
	"starfish/trainer/model"
)

// watcher watches the batches of one trainer for signs that training diverges.
// It belongs to the goroutine of the pipeline.
type watcher struct {
	growth growth
	skips  skips
	model  model.Baseliner // nil: the model cannot say what predicting nothing costs
	passes int
	pass   int // of the last batch
}

// culprit is the batch that an error is about, as far as it is to be explained.
type culprit struct {
	meta  wire.Meta
	chunk int64
	// gradient names the parameter and the place of the largest gradient.
	gradient string
	key      *uint64 // of its row
	values   []reader.Value
}

func newWatcher(spec *job.Spec, m model.Model) *watcher {
	b, _ := m.(model.Baseliner)
	return &watcher{
		growth: growth{limit: spec.Train.MaxLossGrowth}, skips: skips{share: spec.Train.MaxSkipped},
		model: b, passes: spec.Train.Passes,
	}
}

// see takes a batch that was computed, with the loss as it was. It says why the
// job must fail, "" if it need not.
func (w *watcher) see(it *item, loss float64) string {
	w.pass = it.meta.Pass
	if it.data.Records() == 0 {
		return ""
	}
	tooMany := w.skips.add(it.meta.Void)
	if w.model != nil && w.growth.add(loss, w.model.Baseline(&it.data), it.data.Records()) {
		return w.growth.why()
	}
	if tooMany {
		return w.skips.why()
	}
	return ""
}

// seeEnd is see for when there is no more work: as long as there may be another
// pass, it can wait.
func (w *watcher) seeEnd() string {
	if w.pass == w.passes-1 && w.growth.ends() {
		return w.growth.why()
	}
	return ""
}

// watch shows the watcher a batch; the error ends the job.
func (w *worker) watch(ctx context.Context, it *item, loss float64) error {
	if why := w.watcher.see(it, loss); why != "" {
		return w.diverged(ctx, w.culprit(it), why)
	}
	return nil
}

// watchEnd is called when there is no more work, before the last chunks are
// completed. The batch that it names is the last one of this trainer.
func (w *worker) watchEnd(ctx context.Context, last *item) error {
	if why := w.watcher.seeEnd(); why != "" {
		return w.diverged(ctx, w.culprit(last), why)
	}
	return nil
}

// broken explains a shard that is broken by a batch of this trainer's; other
// errors it returns as they are.
func (w *worker) broken(ctx context.Context, err error, pushed []pushedItem) error {
	var fault *client.FaultError
	if !errors.As(err, &fault) || fault.Code != wire.Failed {
		return err
	}
	for _, p := range pushed {
		if strings.HasSuffix(fault.Reason, p.it.meta.Batch()) {
			return w.diverged(ctx, w.culprit(p.it), fmt.Sprintf("on shard %d %s", fault.Shard, fault.Reason))
		}
	}
	return err
}

// diverged ends the job for everybody. A trainer that is not registered any more
// has no say.
func (w *worker) diverged(ctx context.Context, c culprit, why string) error {
	// What has failed may have ended the round, and with it ctx, already.
	explain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	return w.failJob(ctx, "training diverged: "+why+w.explain(explain, c))
}

// shownValues is how many of a batch's largest values are named.
const shownValues = 3

// culprit keeps of a batch what explains it.
func (w *worker) culprit(it *item) culprit {
	c := culprit{meta: it.meta, chunk: it.held.task.Chunk, values: largestValues(&it.data, shownValues)}
	c.gradient, c.key = w.largestGradient(&it.step)
	return c
}

// largestValues are the n largest absolute values above 1, the largest of each
// key.
func largestValues(b *reader.Batch, n int) []reader.Value {
	most := make(map[uint64]float32)
	for i, k := range b.Keys {
		if v := b.Values[i]; magnitude(v) > max(1, magnitude(most[k])) {
			most[k] = v
		}
	}
	list := make([]reader.Value, 0, len(most))
	for k, v := range most {
		list = append(list, reader.Value{Key: k, Value: v})
	}
	slices.SortFunc(list, func(a, b reader.Value) int {
		return cmp.Or(cmp.Compare(magnitude(b.Value), magnitude(a.Value)), cmp.Compare(a.Key, b.Key))
	})
	return list[:min(len(list), n)]
}

// magnitude is the absolute value; NaN is the largest.
func magnitude(v float32) float64 {
	if a := math.Abs(float64(v)); !math.IsNaN(a) {
		return a
	}
	return math.Inf(1)
}

// largestGradient names the parameter with the largest gradient, and the key
// of the row if it is sparse.
func (w *worker) largestGradient(s *model.Step) (name string, key *uint64) {
	most := 0.0
	dense, sparse := 0, 0
	for _, p := range w.job.Parameters.List {
		if !p.Sparse {
			for _, g := range s.DenseGrad[dense] {
				if m := magnitude(g); m > most {
					most, name, key = m, p.Name, nil
				}
			}
			dense++
			continue
		}
		t := &s.Tables[sparse]
		for i, g := range t.Grad {
			if m := magnitude(g); m > most {
				most, name, key = m, p.Name, &t.Keys[i/t.Dim]
			}
		}
		sparse++
	}
	return name, key
}

// explain says where a batch comes from, what is large in it, and what helps.
func (w *worker) explain(ctx context.Context, c culprit) string {
	spec := w.job.Spec
	seek := c.values
	if c.key != nil {
		seek = append(slices.Clone(seek), reader.Value{Key: *c.key})
	}
	o := w.readOptions(etcdqueue.Task{Pass: c.meta.Pass})
	t, err := w.plan.Trace(ctx, c.chunk, c.meta.N, o, seek)
	if err != nil {
		w.log.WithError(err).Warn("the batch cannot be found in its file again")
		t = &reader.Trace{Lines: make([]int64, len(seek)), Columns: make([]string, len(seek))}
		if span, err := w.plan.Span(c.chunk); err == nil {
			t.File = span.File
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "; seen at %s: %s", c.meta.Batch(), t.File)
	if t.First > 0 && t.Last > 0 {
		fmt.Fprintf(&b, ", lines %d to %d", t.First, t.Last)
	}
	if c.gradient != "" {
		fmt.Fprintf(&b, "; the largest gradient is of parameter %q", c.gradient)
	}
	if c.key != nil {
		fmt.Fprintf(&b, ", row %d", *c.key)
		if column := t.Columns[len(seek)-1]; column != "" {
			fmt.Fprintf(&b, " (column %q)", column)
		}
	}
	for i, v := range c.values {
		if i == 0 {
			b.WriteString("; the largest values are ")
		} else {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%g of %s", v.Value, keyName(v.Key, t.Columns[i]))
		if t.Lines[i] > 0 {
			fmt.Fprintf(&b, " in line %d", t.Lines[i])
		}
	}
	b.WriteString(". " + advice(spec, len(c.values) > 0))
	return b.String()
}

func keyName(key uint64, column string) string {
	if column != "" {
		return fmt.Sprintf("column %q", column)
	}
	return fmt.Sprintf("key %d", key)
}

// advice is what helps against divergence.
func advice(spec *job.Spec, large bool) string {
	var b strings.Builder
	switch {
	case large && spec.Data.HasColumns():
		b.WriteString("Scale such columns (features: transform: standard, log1p or bucket), ")
	case large:
		b.WriteString("Scale such values to about 1, ")
	}
	lower := fmt.Sprintf("lower optimizer.learning_rate (it is %g)", spec.Optimizer.LearningRate)
	if b.Len() == 0 {
		lower = strings.ToUpper(lower[:1]) + lower[1:]
	}
	b.WriteString(lower + ", or set optimizer.clip_norm; then run a new job")
	return b.String()
}
