package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"starfish/etcdqueue"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/client"
	"starfish/reader"
	"starfish/trainer/model"
)

// evaluationBatch is how many records are predicted with one pull.
const evaluationBatch = 2048

// tests tells whether there is something to evaluate.
func (w *worker) tests() bool { return len(w.job.Spec.Data.Test) > 0 && !w.pushOnly }

// evaluate predicts the test data with the values that the pservers hold. It
// returns nil if only a part of the data can be read: metrics of another set of
// records would mislead.
func (w *worker) evaluate(ctx context.Context, session *client.Session) (*job.TestResult, error) {
	plan, err := planData(w.job.Spec, w.job.Spec.Data.Test)
	if err != nil { // it was there when the job was made
		return nil, job.Exit(job.ExitData, fmt.Errorf("test data: %w", err))
	}
	e := &evaluation{w: w, session: session, metrics: w.evaluator.NewMetrics()}
	for chunk := range plan.Chunks() {
		err := e.chunk(ctx, plan, chunk)
		if errors.Is(err, reader.ErrBadData) { // trying again would not mend it
			w.log.WithError(err).Error("the test data are damaged: the result has no test metrics")
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("evaluate: %w", err)
		}
	}
	r := model.TestResult(e.records, e.metrics)
	for name, reason := range r.Undefined {
		w.log.WithField("metric", name).WithField("reason", reason).Warn("a test metric is undefined")
	}
	return r, nil
}

type evaluation struct {
	w       *worker
	session *client.Session
	metrics model.Metrics
	records int64
	item    *item
	scores  []float64
}

func (e *evaluation) chunk(ctx context.Context, plan *reader.Plan, chunk int64) error {
	o := e.w.readOptions(etcdqueue.Task{})
	o.Batch, o.Shuffle, o.MaxBad = evaluationBatch, false, int(^uint(0)>>1)
	rd, err := plan.Open(ctx, chunk, o)
	if err != nil {
		return err
	}
	defer rd.Close()
	if e.item == nil {
		e.item = &item{batch: e.w.client.NewBatch()}
	}
	for {
		err := rd.Next(&e.item.data)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := e.batch(ctx); err != nil {
			return err
		}
		if e.item.data.Last {
			break
		}
	}
	if n := rd.Bad(); n > 0 {
		e.w.log.WithField("records", n).Warn("bad records in the test data were left out")
	}
	return nil
}

func (e *evaluation) batch(ctx context.Context) error {
	it := e.item
	n := it.data.Records()
	if n == 0 {
		return nil
	}
	it.keys = layOut(e.w.evaluator, &it.data, it.batch, it.keys)
	it.fillStep()
	call, err := e.session.Exchange(ctx, nil, wire.Meta{}, it.batch)
	if err != nil {
		return err
	}
	if err := call.Wait(ctx); err != nil {
		return err
	}
	e.scores = append(e.scores[:0], make([]float64, n)...)
	e.w.evaluator.Predict(&it.step, e.scores)
	model.AddBatch(e.metrics, &it.data, e.scores)
	e.records += int64(n)
	return nil
}
