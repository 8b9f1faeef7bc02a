package trainer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/campaign/history"
	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/job"
	"starfish/pserver"
)

// watchdog holds every revision of a simulated job against the invariants, every
// checkpoint that is listed against its file, and sees to it that what the dead
// have left is not neglected.
type watchdog struct {
	*plague
	began     time.Time
	history   *history.History     // nil before the job is created
	neglected map[string]time.Time // since when an entry has had no registered owner

	mu      sync.Mutex
	wrong   error
	job     job.Job
	servers []*pserver.Server
	lanes   map[string]etcdqueue.Lane
	moved   time.Time       // when the job has made progress last
	trained map[string]bool // the incarnations of trainers that were registered
}

// guard sets a watchdog on the job, before it is created.
func (p *plague) guard() *watchdog {
	w := &watchdog{plague: p, began: time.Now(), neglected: map[string]time.Time{}, lanes: map[string]etcdqueue.Lane{}, moved: time.Now(), trained: map[string]bool{}}
	p.served = w.serves
	p.store.Observe(w.see)
	p.watchdog = w.look
	return w
}

// serves notes a pserver.
func (w *watchdog) serves(s *pserver.Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers = append(w.servers, s)
}

// see is told of each revision, under the lock of the store.
func (w *watchdog) see(events []store.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrong != nil || len(events) == 0 {
		return
	}
	own := make([]store.Event, 0, len(events))
	for _, e := range events {
		if key, ok := strings.CutPrefix(e.KV.Key, w.prefix()); ok {
			e.KV.Key = key
			own = append(own, e)
		}
	}
	w.wrong = w.judge(own)
	if w.wrong != nil {
		w.wrong = fmt.Errorf("revision %d, %.3f s: %w", events[0].KV.ModRev, time.Since(w.began).Seconds(), w.wrong)
		w.line("WRONG", "%v", w.wrong)
	}
}

func (w *watchdog) judge(events []store.Event) error {
	if w.history == nil {
		if err := w.created(events); err != nil || w.history == nil {
			return err
		}
	}
	if err := w.history.See(events); err != nil {
		return err
	}
	for _, e := range events {
		w.notice(e)
		var err error
		switch {
		case strings.HasPrefix(e.KV.Key, "checkpoints/") && !e.Deleted:
			err = w.loads(e.KV)
		case strings.HasPrefix(e.KV.Key, "queue/"):
			err = w.completed(e)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.KV.Key, err)
		}
	}
	return nil
}

// completed tells which chunk has become Complete that an owner of this moment has
// not finished, as far as that owner lives.
func (w *watchdog) completed(e store.Event) error {
	was := w.lanes[e.KV.Key]
	var now etcdqueue.Lane
	if !e.Deleted {
		if err := json.Unmarshal(e.KV.Value, &now); err != nil {
			return err
		}
	}
	w.lanes[e.KV.Key] = now
	var pass, lane int
	if _, err := fmt.Sscanf(e.KV.Key, "queue/%d/%d", &pass, &lane); err != nil {
		return err
	}
	for position := range now.Complete.Minus(was.Complete).All() {
		rank := position*int64(w.spec.Queue.Lanes) + int64(lane)
		for shard, o := range w.history.View().Shards {
			if !o.Owned() {
				return fmt.Errorf("position %d became Complete while shard %d had no owner", position, shard)
			}
			for _, s := range w.servers {
				if finished, known := s.Has(o.Incarnation, shard, o.Generation, pass, rank); known && !finished {
					return fmt.Errorf("position %d became Complete, and %s, who owns shard %d with generation %d, has not finished it",
						position, o.Name, shard, o.Generation)
				}
			}
		}
	}
	return nil
}

// created learns of the job from the transaction that creates it.
func (w *watchdog) created(events []store.Event) error {
	records := fake.New(fake.Options{})
	for _, e := range events {
		put := store.Txn{Then: []store.Op{store.Put(e.KV.Key, e.KV.Value, 0)}}
		if _, err := records.Txn(context.Background(), put); err != nil {
			return err
		}
	}
	manifest, err := store.Lookup(context.Background(), records, "passes/000000")
	if err != nil || !manifest.Exists() {
		return err
	}
	var pass etcdqueue.Manifest
	if err := json.Unmarshal(manifest.Value, &pass); err != nil {
		return err
	}
	if w.job, err = job.Load(context.Background(), records); err != nil {
		return err
	}
	w.history = history.New(pass.Chunks, w.spec.Queue.Lanes)
	return nil
}

// loads tells what is wrong with a checkpoint that is being listed: with its file,
// or with what the file says. Each record that the ledger has counted, and no
// other, has added 1 to the total.
func (w *watchdog) loads(kv store.KV) error {
	var m checkpoint.Meta
	if err := json.Unmarshal(kv.Value, &m); err != nil {
		return err
	}
	data, err := w.disk.now().ReadFile(filepath.Join(w.spec.Checkpoint.Dir, m.Path))
	if err != nil {
		return err
	}
	j := w.job
	s, err := pserver.NewShard(j.Parameters, m.Shard, w.spec.Queue.Lanes, pserver.ShardOptions{})
	if err != nil {
		return err
	}
	l := checkpoint.Loader{FS: oneFile{data: data}, Dir: w.spec.Checkpoint.Dir, Job: j.UUID}
	if _, _, err := l.Load(context.Background(), []checkpoint.Meta{m}, s.NewLoader()); err != nil {
		return err
	}
	stats := s.Stats()
	if stats.Summary.Passes != m.Passes {
		return fmt.Errorf("it covers %d passes and its record says %d", stats.Summary.Passes, m.Passes)
	}
	if n := stats.Summary.InFlight; m.Passes == w.spec.Train.Passes && n > 0 {
		return fmt.Errorf("it covers every pass, and %d chunks are in flight", n)
	}
	for p, parameter := range j.Parameters.List {
		for r := range s.Export(p) {
			if parameter.Name == "total" && r.Counts != nil && int64(r.Counts[0]) != stats.Total.Records {
				return fmt.Errorf("its weights have %d records, its ledger %d", r.Counts[0], stats.Total.Records)
			}
		}
	}
	return nil
}

// oneFile is a file system that holds one file, whatever it is called.
type oneFile struct {
	checkpoint.FS
	data []byte
}

func (f oneFile) Open(string) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(f.data)), nil
}

func (f oneFile) Size(string) (int64, error) { return int64(len(f.data)), nil }

const (
	// settling is how long after the last fault leases may live that nobody renews,
	// and another steward may not have begun.
	settling = 30 * time.Second
	// negligence is how long chunks of the dead may lie then.
	negligence = 15 * time.Second
)

// look tells what is wrong with the job.
func (w *watchdog) look() error {
	w.mu.Lock()
	wrong := w.wrong
	w.mu.Unlock()
	if wrong == nil {
		wrong = w.bounds(false)
	}
	if wrong == nil {
		wrong = w.idles()
	}
	if wrong != nil || time.Since(w.over) < settling {
		return wrong
	}
	kvs, _, err := store.List(w.ctx, w.store, w.prefix(), store.PrefixEnd(w.prefix()))
	require.NoError(w.t, err)
	registered, held := map[string]bool{}, map[string]time.Time{}
	for _, kv := range kvs {
		if strings.HasPrefix(kv.Key, w.prefix()+"trainers/") {
			var r struct{ Incarnation string }
			require.NoError(w.t, json.Unmarshal(kv.Value, &r))
			registered[r.Incarnation] = true
		}
	}
	for _, kv := range kvs {
		var lane etcdqueue.Lane
		if !strings.HasPrefix(kv.Key, w.prefix()+"queue/") || json.Unmarshal(kv.Value, &lane) != nil {
			continue
		}
		for _, e := range lane.Pending {
			if id := fmt.Sprint(kv.Key, e.Incarnation, e.Token); !registered[e.Incarnation] {
				held[id] = w.neglected[id]
				if held[id].IsZero() {
					held[id] = time.Now()
				}
				if since := time.Since(held[id]); since > negligence {
					return fmt.Errorf("positions %s of %s are Pending with %s, who has not been registered for %v", e.At, kv.Key, e.Owner, since)
				}
			}
		}
	}
	w.neglected = held
	return nil
}
