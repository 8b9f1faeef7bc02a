package pserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/sirupsen/logrus"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/failpoint"
	"starfish/internal/membership"
	"starfish/internal/ranges"
	"starfish/internal/store"
	"starfish/job"
	"starfish/pserver/ledger"
)

// errLostShard: the shard has another owner or generation by now.
var errLostShard = errors.New("pserver: the shard is not owned here any more")

// sourceMemory: the shard's content is in memory still, from before the lease was
// lost.
const sourceMemory = "memory"

// restore makes a claimed shard's content and begins to serve it: what is in
// memory already, the newest checkpoint that loads, or the initial values if
// there has never been one. It tries again until the ownership ends.
func (t *tenure) restore(ctx context.Context, h *held) error {
	if h.claim.From == "" {
		failpoint.Hit(failpoint.AfterClaim)
	} else {
		failpoint.Hit(failpoint.AfterReceipt)
	}
	began := t.cfg.Clock.Now()
	source := sourceMemory
	if h.core == nil {
		var err error
		if source, err = t.load(ctx, h); err != nil {
			return err
		}
	}
	h.core.SetGeneration(h.generation)
	t.startSteps(h, source)
	h.loaded.Store(true)
	t.showTrainers(h)
	h.serving.Store(true)
	close(h.served)
	took := t.cfg.Clock.Now().Sub(began)
	h.mu.Lock()
	h.recovered = took
	if h.claim.From != "" {
		pause := h.claim.Paused + took.Seconds()
		h.pauses += pause
		t.metrics.taken(pause)
		t.logOf(h).WithFields(logrus.Fields{"from": h.claim.From, "seconds": pause}).Info("received the shard")
	}
	h.mu.Unlock()
	t.metrics.restored(source, took)
	t.logOf(h).WithFields(logrus.Fields{"source": source, "seconds": took.Seconds(), "flat": h.core.Flat()}).Info("serving the shard")
	h.orphans = true // of whoever had the shard before
	return nil
}

func (t *tenure) load(ctx context.Context, h *held) (source string, err error) {
	core, err := NewShard(t.job.Parameters, h.shard, t.job.Spec.Queue.Lanes, ShardOptions{Policy: t.policy(), Stage: t.stage, Memory: t.memory, Blank: true, Steps: t.steps()})
	if err != nil {
		return "", fmt.Errorf("make shard %d: %w", h.shard, err)
	}
	defer func() {
		if err != nil {
			core.Release()
		}
	}()
	for {
		h.doing("loading a checkpoint")
		source, err = t.loadInto(ctx, h, core)
		if err == nil {
			h.core = core
			return source, nil
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if errors.Is(err, checkpoint.ErrNotOwner) {
			<-ctx.Done() // the view will say so
			return "", context.Cause(ctx)
		}
		if !retryable(err) || errors.Is(err, checkpoint.ErrNoneLoads) || job.ExitCode(err) == int(job.ExitStateLost) {
			return "", err
		}
		t.warn(h, "cannot restore the shard yet, trying again", err)
		if err := clock.Sleep(ctx, t.cfg.Clock, retryPause); err != nil {
			return "", err
		}
	}
}

// loadInto fills a new shard from the newest listed checkpoint that loads, and
// drops from the list what it had to pass over: what is listed newest is always
// an ancestor of what the owner holds.
func (t *tenure) loadInto(ctx context.Context, h *held, core *Shard) (string, error) {
	metas, _, err := checkpoint.List(ctx, t.cfg.Store, h.shard)
	if err != nil {
		return "", err
	}
	if len(metas) == 0 {
		return t.begin(h, core)
	}
	l := checkpoint.Loader{FS: t.cfg.FS, Dir: t.cfg.CheckpointDir, Job: t.job.UUID, Clock: t.cfg.Clock}
	m, skipped, err := l.Load(ctx, metas, core.NewLoader())
	if errors.Is(err, checkpoint.ErrNoneLoads) && t.cfg.AllowReinit {
		t.logOf(h).WithError(err).Error("the shard begins anew, as allowed: what it had is lost")
		h.reinit = true
		if err := t.passOver(ctx, h, skipped); err != nil {
			return "", err
		}
		core.Fill()
		core.MarkRestored()
		return "reinit", nil
	}
	if err != nil {
		return "", err
	}
	if err := h.inherit(m); err != nil {
		return "", err
	}
	log := t.logOf(h).WithFields(logrus.Fields{"checkpoint": m.Path, "batches": m.Batches})
	if len(skipped) == 0 {
		log.Info("checkpoint loaded")
		return "checkpoint", nil
	}
	if err := t.passOver(ctx, h, skipped); err != nil {
		return "", err
	}
	log.Warn("an older checkpoint was loaded")
	return "fallback", nil
}

// inherit takes over what only the summaries of the shard's checkpoints know.
func (h *held) inherit(m checkpoint.Meta) error {
	var before ledger.Summary
	if err := json.Unmarshal(m.Ledger, &before); err != nil {
		return fmt.Errorf("the summary of %s: %w", m.Path, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pauses = before.HandOverSeconds
	return nil
}

// begin is the restore of a shard without checkpoints.
func (t *tenure) begin(h *held, core *Shard) (string, error) {
	if h.claim.Listed && !t.cfg.AllowReinit {
		return "", job.Exitf(job.ExitStateLost,
			"shard %d has had checkpoints and none is listed any more; --allow-reinit begins anew without them", h.shard)
	}
	if h.claim.Listed {
		t.logOf(h).Error("the shard begins anew, as allowed: what it had is lost")
		h.reinit = true
	}
	core.Fill()
	if h.generation > 1 {
		core.MarkRestored()
	}
	return "initial", nil
}

// passOver takes checkpoints that do not load off the list, and keeps their files.
func (t *tenure) passOver(ctx context.Context, h *held, skipped []checkpoint.Skipped) error {
	metas := make([]checkpoint.Meta, 0, len(skipped))
	for _, s := range skipped {
		metas = append(metas, s.Meta)
		t.metrics.unloadable.Inc()
		t.logOf(h).WithField("checkpoint", s.Meta.Path).WithError(s.Err).
			Error("a checkpoint does not load, its file is kept as .bad")
	}
	if err := checkpoint.Drop(ctx, t.cfg.Store, h.owner(), metas); err != nil {
		return err
	}
	if err := checkpoint.SetAside(t.cfg.FS, t.cfg.CheckpointDir, skipped); err != nil {
		t.logOf(h).WithError(err).Warn("a file was not renamed")
	}
	return nil
}

// policy is what becomes of the batches that a restore has lost.
func (t *tenure) policy() ledger.Policy {
	if t.job.Spec.Recovery.Policy == job.PolicySkip {
		return ledger.Skip
	}
	return ledger.Replay
}

// compare holds the ledger against the queue's lanes, all passes that it has
// not collapsed: it reopens what is Complete in the queue and not finished
// here, or gives it up, and collapses what is through. covered: all passes have
// collapsed.
//
// The lanes are read after the claim, linearizably, and the ledger is asked
// after that, while the shard is being served. So a chunk that is seen as
// Complete was completed either under an earlier owner, and is missing here if
// a restore lost it, or with this owner's own acknowledgement, and is not.
func (t *tenure) compare(ctx context.Context, h *held) (st etcdqueue.State, covered bool, err error) {
	if st, err = t.queue.State(ctx); err != nil {
		return st, false, err
	}
	first := st.Revision
	for pass := h.core.Stats().Summary.Passes; pass <= st.Pass; pass++ {
		if pass < st.Floor {
			if err := t.forget(h, pass, st); err != nil {
				return st, false, err
			}
			pass = st.Floor - 1
			continue
		}
		lanes, now, _, err := t.queue.Lanes(ctx, pass)
		if errors.Is(err, etcdqueue.ErrNoPass) {
			if now, err = t.queue.State(ctx); err == nil && now.Floor <= pass {
				err = fmt.Errorf("pass %d: %w", pass, etcdqueue.ErrNoPass)
			}
			if err != nil {
				return st, false, err
			}
			st = now
			pass--
			continue
		}
		if err != nil {
			return st, false, err
		}
		st = now
		if err := t.comparePass(ctx, h, pass, lanes, st); err != nil {
			return st, false, err
		}
	}
	covered = h.core.Stats().Summary.Passes > st.Pass
	// Whatever has changed since the first look asks for another one.
	st.Revision = first
	return st, covered, nil
}

func (t *tenure) comparePass(ctx context.Context, h *held, pass int, lanes []etcdqueue.Lane, st etcdqueue.State) error {
	missing := map[int]ranges.Set{}
	own := make([]ledger.Lane, len(lanes))
	for i, l := range lanes {
		own[i] = ledger.Lane{Complete: l.Complete, Failed: l.Failed, Batches: l.Batches}
	}
	if loss := h.core.Reckon(pass, own); loss.Chunks > 0 { // policy skip
		t.logOf(h).WithFields(logrus.Fields{"pass": pass, "chunks": loss.Chunks, "batches": loss.Batches}).
			Warn("batches of complete chunks are lost")
	}
	for i, l := range lanes {
		// What another shard has reopened already this one may have lost too:
		// it was complete once. Marked first, so that each replayed batch counts.
		if lost := h.core.Missing(pass, i, l.Complete.Union(l.Again)); lost.Len() > 0 {
			h.core.Reopened(pass, i, lost)
		}
		if m := h.core.Missing(pass, i, l.Complete); m.Len() > 0 {
			missing[i] = m
		}
	}
	if len(missing) > 0 {
		return t.reopen(ctx, h, pass, missing)
	}
	over := pass < st.Pass || st.Phase != etcdqueue.PhaseTraining
	if !over || slices.Contains(st.Reopened, pass) {
		return nil
	}
	m, err := t.queue.Manifest(ctx, pass)
	if err != nil {
		return err
	}
	return h.core.Collapse(pass, m.Chunks, own)
}

// forget gives up the passes from pass to the floor, whose lanes are gone and
// which a shard that began anew has never seen: their batches are lost here.
func (t *tenure) forget(h *held, pass int, st etcdqueue.State) error {
	if !h.reinit {
		return fmt.Errorf("pass %d of shard %d is not covered, and its lanes are gone", pass, h.shard)
	}
	lost := h.core.Forget(st.Floor, st.Past.Batches)
	t.logOf(h).WithFields(logrus.Fields{"pass": pass, "to": st.Floor - 1, "batches": lost}).
		Error("passes are lost on this shard, their lanes are gone")
	return nil
}

// reopen gives chunks back to the queue that a restore has lost.
func (t *tenure) reopen(ctx context.Context, h *held, pass int, missing map[int]ranges.Set) error {
	h.doing("reopening chunks that the restore has lost")
	for {
		v, err := membership.ReadView(ctx, t.cfg.Store)
		if err != nil {
			return err
		}
		if v.Generation(h.shard, h.member.Incarnation()) != h.generation {
			return errLostShard
		}
		failpoint.Hit(failpoint.BeforeReopen)
		n, err := t.queue.ReopenLanes(ctx, pass, missing, func() []store.Cmp { return []store.Cmp{v.Guard()} })
		if errors.Is(err, etcdqueue.ErrGuard) {
			continue // others' shards may have moved
		}
		if err != nil {
			return fmt.Errorf("reopen pass %d: %w", pass, err)
		}
		if n == 0 {
			return nil // another shard that lost them was quicker
		}
		t.metrics.reopened.Add(float64(n))
		t.logOf(h).WithFields(logrus.Fields{"pass": pass, "chunks": n}).Warn("chunks that the restore has lost are trained again")
		return nil
	}
}
