package job

import (
	"context"
	"encoding/json"
	"fmt"

	"starfish/internal/store"
)

// PassResult is what one pass has achieved. Times are those of the steward that
// saw the pass end.
type PassResult struct {
	// Pass counts from 0.
	Pass int `json:"pass"`
	// Records that the pass has trained, each once.
	Records int64 `json:"records"`
	// Seconds from the first take of the job to the end of the pass; null if
	// the steward has not seen both.
	Seconds *float64 `json:"seconds"`
	// Train is the progressive loss over this pass.
	Train TrainResult `json:"train"`
	// Test is the evaluation of the state at the end of the pass; null without
	// (good) test data.
	Test *TestResult `json:"test"`
}

// keyMetrics is the prefix of the records of the passes.
const keyMetrics = "metrics/"

// passRecord is the record `metrics/<pass>`.
type passRecord struct {
	V int `json:"v"`
	PassResult
}

const passRecordVersion = 1

// Put is the write of the record `metrics/<pass>`.
func (p PassResult) Put() (store.Op, error) {
	value, err := json.Marshal(passRecord{passRecordVersion, p})
	if err != nil {
		return store.Op{}, fmt.Errorf("job: the metrics of pass %d: %w", p.Pass, err)
	}
	return store.Put(metricsKey(p.Pass), value, 0), nil
}

func metricsKey(pass int) string { return fmt.Sprintf("%s%06d", keyMetrics, pass) }

// historyPage is how many records are read at a time.
const historyPage = 1000

// History reads the records of the passes from one on, in their order. st is
// the job's own view of the store.
func History(ctx context.Context, st store.Store, from int) ([]PassResult, error) {
	history := []PassResult{}
	for next := metricsKey(from); ; {
		r, err := store.Read(ctx, st, store.Range(next, store.PrefixEnd(keyMetrics), historyPage))
		if err != nil {
			return nil, fmt.Errorf("job: read the metrics of the passes: %w", err)
		}
		for _, kv := range r.KVs[0] {
			var record passRecord
			if err := json.Unmarshal(kv.Value, &record); err != nil {
				return nil, fmt.Errorf("job: the record %s: %w", kv.Key, err)
			}
			if record.V != passRecordVersion {
				return nil, fmt.Errorf("job: the record %s has version %d; this program knows version %d", kv.Key, record.V, passRecordVersion)
			}
			history = append(history, record.PassResult)
			next = kv.Key + "\x00"
		}
		if len(r.KVs[0]) < historyPage {
			return history, nil
		}
	}
}
