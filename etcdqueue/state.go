package etcdqueue

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"starfish/internal/store"
)

// Phase is where a job stands.
type Phase string

// The phases of a job.
const (
	// PhaseTraining: chunks are taken, or a reopened one is to be trained again.
	PhaseTraining Phase = "training"
	// PhaseDraining: every chunk of every pass is dealt with; shards write their last checkpoints.
	PhaseDraining Phase = "draining"
	// PhaseComplete: the end.
	PhaseComplete Phase = "complete"
	// PhaseFailed: the end, with a reason.
	PhaseFailed Phase = "failed"
)

// Ended tells whether nothing will change any more.
func (p Phase) Ended() bool { return p == PhaseComplete || p == PhaseFailed }

// State is the record `state`. It changes only by compare-and-swap.
type State struct {
	V      int    `json:"v"`
	Phase  Phase  `json:"phase"`
	Reason string `json:"reason,omitempty"`
	// Pass is the current pass. Once the job drains it stays at the last one.
	Pass int `json:"pass"`
	// Floor is the first pass whose lanes may exist. Below it an absent lane
	// means nothing; from it on, a lane of which nothing was taken.
	Floor int `json:"floor"`
	// Reopened lists, ascending, the passes in which a shard has reopened
	// chunks, the current one too.
	Reopened []int `json:"reopened"`
	// Lanes is L, the number of lanes of every pass.
	Lanes int `json:"lanes"`
	// Past sums up the lanes of the passes below Floor, which are gone.
	Past Totals `json:"past"`

	// Revision is the record's mod revision; it is not part of the value.
	Revision int64 `json:"-"`
}

// Guard is the condition that the record has not changed since it was read.
func (s State) Guard() store.Cmp { return store.Unchanged(stateKey, s.Revision) }

// Takeable lists the passes in which chunks may be Todo or Pending, in the
// order in which takes look: reopened ones first, then the current one.
func (s State) Takeable() []int {
	passes := slices.Clone(s.Reopened)
	if !slices.Contains(passes, s.Pass) {
		passes = append(passes, s.Pass)
	}
	return passes
}

// Manifest is the record `passes/<pass>`: what the pass goes over. It exists
// as long as the pass may be taken from or reopened.
type Manifest struct {
	V int `json:"v"`
	// Chunks is N, the number of chunks.
	Chunks int64 `json:"chunks"`
	// Fingerprint and Files belong to whoever cuts chunks; the queue does not
	// look at them.
	Fingerprint string          `json:"fingerprint,omitempty"`
	Files       json.RawMessage `json:"files,omitempty"`
}

// FailedChunk is the record `failed/<chunk>`: a quarantined chunk. While it
// exists the chunk is skipped in later passes too.
type FailedChunk struct {
	V           int    `json:"v"`
	Chunk       int64  `json:"chunk"`
	Pass        int    `json:"pass"`
	Reason      string `json:"reason"`
	Failures    int    `json:"failures"`
	Owner       string `json:"owner"`
	Incarnation string `json:"incarnation"`
	// Detail belongs to whoever reported the failure; the queue does not look at
	// it.
	Detail json.RawMessage `json:"detail,omitempty"`
}

// Totals sums up lanes. Chunks counts each chunk once per pass.
type Totals struct {
	Chunks   int64 `json:"chunks"`
	Todo     int64 `json:"todo,omitempty"`
	Pending  int64 `json:"pending,omitempty"`
	Complete int64 `json:"complete"`
	Failed   int64 `json:"failed"`
	// Takes counts handed-out chunks, Requeued those of them that came back
	// because their taker was lost or stalled, Reopened those that were
	// Complete and had to be trained again.
	Takes    int64 `json:"takes"`
	Requeued int64 `json:"requeued"`
	Reopened int64 `json:"reopened"`
	// Speculated of Takes were overtaken from a taker that did not get on.
	Speculated int64 `json:"speculated,omitempty"`
	// Batches, Records and Bad records (left out) of complete chunks, each once
	// per pass.
	Batches int64 `json:"batches"`
	Records int64 `json:"records"`
	Bad     int64 `json:"bad,omitempty"`
}

// Add is the sum of both.
func (t Totals) Add(u Totals) Totals {
	t.Chunks += u.Chunks
	t.Todo += u.Todo
	t.Pending += u.Pending
	t.Complete += u.Complete
	t.Failed += u.Failed
	t.Takes += u.Takes
	t.Requeued += u.Requeued
	t.Speculated += u.Speculated
	t.Reopened += u.Reopened
	t.Batches += u.Batches
	t.Records += u.Records
	t.Bad += u.Bad
	return t
}

// Sum adds up lanes.
func Sum(lanes []Lane) Totals {
	var t Totals
	for _, l := range lanes {
		t = t.Add(l.Totals())
	}
	return t
}

// The versions of the records that this package writes and reads.
const (
	stateVersion    = 1
	manifestVersion = 1
	failedVersion   = 1
	laneVersion     = 1
)

// The keys, relative to the job's prefix. Numbers are padded so that they sort.
const (
	stateKey     = "state"
	passesPrefix = "passes/"
	queuePrefix  = "queue/"
	failedPrefix = "failed/"
)

func passKey(pass int) string           { return fmt.Sprintf("%s%06d", passesPrefix, pass) }
func lanesPrefix(pass int) string       { return fmt.Sprintf("%s%06d/", queuePrefix, pass) }
func laneKey(pass int, lane int) string { return fmt.Sprintf("%s%06d/%04d", queuePrefix, pass, lane) }
func failedKey(chunk int64) string      { return fmt.Sprintf("%s%012d", failedPrefix, chunk) }

// DefaultLanes is the number of lanes where none is given.
const DefaultLanes = 64

// InitialOps are the puts of `state` and of pass 0's manifest: the whole of an
// empty queue, whatever its size. They belong into the transaction that
// creates the job, together with its condition that there is none yet.
func InitialOps(m Manifest, lanes int) []store.Op {
	if lanes <= 0 {
		lanes = DefaultLanes
	}
	m.V = manifestVersion
	s := State{V: stateVersion, Phase: PhaseTraining, Lanes: lanes}
	return []store.Op{store.Put(stateKey, s.encode(), 0), store.Put(passKey(0), m.encode(), 0)}
}

func (s State) encode() []byte {
	if s.Reopened == nil {
		s.Reopened = []int{}
	}
	return mustJSON(s)
}

func (m Manifest) encode() []byte { return mustJSON(m) }

// mustJSON encodes our own records, which always can be.
func mustJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// decodeState reads `state`; ErrNoQueue if it is absent.
func decodeState(kv store.KV) (State, error) {
	if !kv.Exists() {
		return State{}, ErrNoQueue
	}
	var s State
	if err := decode(kv, stateVersion, &s, &s.V); err != nil {
		return State{}, err
	}
	s.Revision = kv.ModRev
	switch s.Phase {
	case PhaseTraining, PhaseDraining, PhaseComplete, PhaseFailed:
	default:
		return State{}, fmt.Errorf("%w: %s: phase %q", ErrFormat, kv.Key, s.Phase)
	}
	ok := s.Lanes > 0 && s.Floor >= 0 && s.Floor <= s.Pass && slices.IsSorted(s.Reopened)
	for _, p := range s.Reopened {
		ok = ok && p >= s.Floor && p <= s.Pass
	}
	if !ok {
		return State{}, fmt.Errorf("%w: %s: impossible values", ErrFormat, kv.Key)
	}
	return s, nil
}

// DecodeState reads the value of the record `state`.
func DecodeState(kv store.KV) (State, error) { return decodeState(kv) }

func decodeManifest(kv store.KV) (Manifest, error) {
	var m Manifest
	if err := decode(kv, manifestVersion, &m, &m.V); err != nil {
		return Manifest{}, err
	}
	if m.Chunks < 0 || m.Chunks > maxChunks {
		return Manifest{}, fmt.Errorf("%w: %s: %d chunks", ErrFormat, kv.Key, m.Chunks)
	}
	return m, nil
}

// maxChunks keeps every rank inside an int64 and a set.
const maxChunks = 1 << 48

// decode reads a JSON record into *into, whose version lands in *v. If that is
// not the version that this program knows the error says so, whatever else is
// the matter: nothing else of a later version need be readable.
func decode(kv store.KV, version int, into any, v *int) error {
	err := json.Unmarshal(kv.Value, into)
	if err == nil && *v == version {
		return nil
	}
	var head struct {
		V int `json:"v"`
	}
	if json.Unmarshal(kv.Value, &head) == nil && head.V != version {
		return fmt.Errorf("%w: %s has version %d; this program knows version %d", ErrFormat, kv.Key, head.V, version)
	}
	return fmt.Errorf("%w: %s: %w", ErrFormat, kv.Key, err)
}
