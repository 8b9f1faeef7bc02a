package job

import (
	"encoding/json"
	"fmt"
)

// Staleness is how old values were when the gradient that was computed from them
// was applied: how many updates of other trainers they had not seen, at the median
// and at the 99th percentile of all batches and shards, as the last owners saw it.
type Staleness struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
}

// Result is what a job achieved: the record `result` and the output of
// `starfish run --result`. A value that does not exist is null, never NaN.
type Result struct {
	V      int    `json:"v"` // ResultVersion, in whatever is written
	Job    string `json:"job"`
	UUID   string `json:"uuid"`
	Phase  string `json:"phase"`
	Reason string `json:"reason,omitempty"`
	Mode   string `json:"mode"`
	// Recovery is the policy for what a lost pserver had not saved.
	Recovery string `json:"recovery"`
	Passes   int    `json:"passes"`
	Records  int64  `json:"records"`
	// BadRecords were left out, within data.max_bad_records a chunk, each once a
	// pass like Records.
	BadRecords int64 `json:"bad_records"`
	// Staleness of the values that gradients were computed from; null where
	// nothing is pulled.
	Staleness        *Staleness  `json:"staleness"`
	Seconds          *float64    `json:"seconds"`
	WallSeconds      *float64    `json:"wall_seconds"`
	CPUSeconds       *float64    `json:"cpu_seconds"`
	RecordsPerSecond *float64    `json:"records_per_second"`
	Train            TrainResult `json:"train"`
	Test             *TestResult `json:"test"`
	Queue            QueueResult `json:"queue"`
	// Failed are the quarantined chunks; null if there are none.
	Failed   *FailedResult `json:"failed"`
	Shards   []ShardState  `json:"shards"`
	Restarts Restarts      `json:"restarts"`
	// History has the passes that were evaluated, in order. The record `result`
	// leaves it out, for it may be long.
	History []PassResult `json:"history"`
}

// ResultVersion is the version of the form in which a Result is written.
const ResultVersion = 1

// MarshalJSON writes the result with the version of its form.
func (r Result) MarshalJSON() ([]byte, error) {
	type fields Result
	r.V = ResultVersion
	return json.Marshal(fields(r))
}

// UnmarshalJSON reads what MarshalJSON writes, and refuses other versions.
func (r *Result) UnmarshalJSON(text []byte) error {
	type fields Result
	var head struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return fmt.Errorf("job: result: %w", err)
	}
	if head.V != ResultVersion {
		return fmt.Errorf("job: the result has version %d; this program knows version %d", head.V, ResultVersion)
	}
	return json.Unmarshal(text, (*fields)(r))
}

// TrainResult is the progressive loss over the last pass.
type TrainResult struct {
	Loss *float64 `json:"loss"`
}

// TestResult is the evaluation on the test data. In JSON the metrics stand
// beside `records` and `undefined`.
type TestResult struct {
	Records int64
	// Metrics by name; nil: it is undefined.
	Metrics map[string]*float64
	// Undefined says why, by the name of the metric; nil: all are defined.
	Undefined map[string]string
}

// QueueResult sums up the dispatch of chunks over all passes.
type QueueResult struct {
	Chunks   int64 `json:"chunks"`
	Complete int64 `json:"complete"`
	Failed   int64 `json:"failed"`
	Takes    int64 `json:"takes"`
	Requeued int64 `json:"requeued"`
	// Speculated of Takes were taken over from a trainer that was too slow.
	Speculated int64 `json:"speculated"`
	// Batches and Records are the lanes' sums over all passes, each chunk once
	// per pass: those of every shard's ledger must equal them.
	Batches int64 `json:"batches"`
	Records int64 `json:"records"`
}

// ShardState is what one shard's ledger says at the end.
type ShardState struct {
	Shard      int   `json:"shard"`
	Generation int64 `json:"generation"`
	Records    int64 `json:"records"`
	Batches    int64 `json:"batches"`
	Skipped    int64 `json:"skipped"`
	Duplicates int64 `json:"duplicates"`
	// Lost batches were applied by an owner that was lost and are in no
	// checkpoint; Losses is how many restores lost some.
	Lost             int64   `json:"lost"`
	Losses           int64   `json:"losses"`
	Replayed         int64   `json:"replayed"`
	RecoveredSeconds float64 `json:"recovered_seconds"`
	HandOvers        int64   `json:"handovers"`
	HandOverSeconds  float64 `json:"handover_seconds"`
}

// Restarts counts processes that were started again, and how many of the
// deaths were chaos kills between first take and last complete.
type Restarts struct {
	Pserver int `json:"pserver"`
	Trainer int `json:"trainer"`
	// Kills counts the kills of --chaos; absent without it.
	Kills *Kills `json:"kills,omitempty"`
}

// Kills counts the kills of --chaos by role.
type Kills struct {
	Pserver int `json:"pserver"`
	Trainer int `json:"trainer"`
}

// MarshalJSON writes the metrics beside the number of records, in the order of
// their names.
func (t TestResult) MarshalJSON() ([]byte, error) {
	m := map[string]any{"records": t.Records}
	if len(t.Undefined) > 0 {
		m["undefined"] = t.Undefined
	}
	for name, value := range t.Metrics {
		m[name] = value
	}
	return json.Marshal(m)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (t *TestResult) UnmarshalJSON(text []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("job: test result: %w", err)
	}
	*t = TestResult{Metrics: make(map[string]*float64)}
	for name, raw := range all {
		if name == "undefined" {
			if err := json.Unmarshal(raw, &t.Undefined); err != nil {
				return fmt.Errorf("job: test result: %s: %w", name, err)
			}
			continue
		}
		var number *json.Number
		if err := json.Unmarshal(raw, &number); err != nil {
			return fmt.Errorf("job: test result: %s: %w", name, err)
		}
		switch {
		case name == "records" && number != nil:
			n, err := number.Int64()
			if err != nil {
				return fmt.Errorf("job: test result: records: %w", err)
			}
			t.Records = n
		case number == nil:
			t.Metrics[name] = nil
		default:
			v, err := number.Float64()
			if err != nil {
				return fmt.Errorf("job: test result: %s: %w", name, err)
			}
			t.Metrics[name] = &v
		}
	}
	return nil
}
