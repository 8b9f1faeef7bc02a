package pserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/checkpoint"
	"starfish/internal/failpoint"
)

// firstSave is how long after it began to be served a shard is saved for the
// first time; the pauses double from there up to the job's interval. A job that is
// over by then saves only at its end: what a kill before could make it do again is
// less than a start.
const firstSave = 4 * time.Second

// rhythm says when interval saves are due: after 4, 8, 16 … seconds, up to
// the interval. It is a pure value of the times that it is given.
type rhythm struct {
	interval time.Duration
	pause    time.Duration
	next     time.Time
}

func newRhythm(interval time.Duration, now time.Time) *rhythm {
	r := &rhythm{interval: interval, pause: min(firstSave, interval)}
	r.next = now.Add(r.pause)
	return r
}

func (r *rhythm) due(now time.Time) bool { return !now.Before(r.next) }

func (r *rhythm) wait(now time.Time) time.Duration { return max(0, r.next.Sub(now)) }

// done notes a save and returns how many further ones it has made impossible by
// taking longer than the pause: they are skipped, not made up for.
func (r *rhythm) done(began, ended time.Time) (skipped int) {
	r.pause = min(2*r.pause, r.interval)
	r.next = began.Add(r.pause)
	for !ended.Before(r.next) {
		r.next = r.next.Add(r.pause)
		skipped++
	}
	return skipped
}

// The occasions of a save. Interval saves may be skipped, the others never.
const (
	saveInterval = "interval"
	saveFinal    = "final"
	saveStop     = "stop"
	saveRequest  = "request"
	saveHandOver = "handover"
)

// saveInterval saves a shard that has changed since its last checkpoint, or
// has none of this ownership.
func (t *tenure) saveInterval(h *held) error {
	now := h.core.Stats().Summary
	h.mu.Lock()
	last := h.saved.summary
	h.mu.Unlock()
	if !h.fresh && now.Passes == last.Passes && now.Counters == last.Counters && now.Total() == last.Total() {
		return nil
	}
	h.doing("writing a checkpoint")
	defer h.doing("serving")
	return t.save(h.ctx, h, saveInterval)
}

// save writes, lists and tidies up one checkpoint. It is never called twice at
// once for one shard.
func (t *tenure) save(ctx context.Context, h *held, why string) error {
	listing := t.publisher.Announce()
	defer listing.Withdraw()
	select {
	case t.saving <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	began := t.cfg.Clock.Now()
	saved, err := t.write(ctx, h, why)
	<-t.saving
	if err == nil {
		err = t.list(ctx, h, listing, saved, why)
	}
	h.mu.Lock()
	h.saving = err
	h.mu.Unlock()
	t.metrics.saved(why, err, t.cfg.Clock.Now().Sub(began))
	return err
}

// write makes the file, of the shard as it is when it is called. A shard that is
// to be handed over is not served any more from the cut on.
func (t *tenure) write(ctx context.Context, h *held, why string) (lastSave, error) {
	// A save whose listing failed may have left its file. Only one: the next
	// does not begin before that one is gone.
	if h.orphans {
		removed, err := checkpoint.Collect(ctx, t.cfg.FS, t.cfg.CheckpointDir, t.cfg.Store, h.owner())
		if err != nil {
			return lastSave{}, err
		}
		h.orphans = false
		if len(removed) > 0 {
			t.logOf(h).WithField("files", removed).Info("removed what earlier saves had left")
		}
	}
	asked := t.requested.Load() // before the cut
	if why == saveHandOver {
		h.giving.Load().stopped = t.cfg.Clock.Now()
		h.away.Store(true) // a push that asks after this is refused, one before is in the cut
	}
	cut, err := h.core.Cut()
	if err != nil {
		return lastSave{}, fmt.Errorf("cut shard %d: %w", h.shard, err)
	}
	defer cut.Close()
	summary := cut.Ledger()
	summary.Staleness = h.core.Staleness()
	summary.Request, summary.Memory = asked, h.core.Content()
	if h.generation > 1 {
		h.mu.Lock()
		summary.RecoveredSeconds = h.recovered.Seconds()
		summary.HandOvers, summary.HandOverSeconds = h.claim.HandOvers, h.pauses
		h.mu.Unlock()
	}
	text, err := json.Marshal(summary)
	if err != nil {
		return lastSave{}, fmt.Errorf("save shard %d: %w", h.shard, err)
	}
	now := t.cfg.Clock.Now()
	h.orphans = true
	f, err := checkpoint.Save(ctx, t.cfg.FS, t.cfg.CheckpointDir, checkpoint.Header{
		JobUUID: t.job.UUID.String(), Shard: h.shard, Generation: h.generation, Created: now.UnixNano(),
	}, func(emit checkpoint.Emit) error { return cut.WriteTo(emit) })
	if err != nil {
		return lastSave{}, err
	}
	total := summary.Total()
	m := checkpoint.Meta{
		UUID: f.UUID, Path: f.Path, MD5: f.MD5, Size: f.Size, Timestamp: now.UnixNano(),
		Shard: h.shard, Generation: h.generation, Passes: summary.Passes, Batches: total.Batches, Ledger: text,
	}
	return lastSave{meta: m, summary: summary}, nil
}

// list makes the file count, and removes the oldest ones.
func (t *tenure) list(ctx context.Context, h *held, listing *checkpoint.Announcement, saved lastSave, why string) error {
	m := saved.meta
	dropped, err := listing.Publish(ctx, checkpoint.Listing{Owner: h.owner(), Meta: m, Keep: t.job.Spec.Checkpoint.Keep})
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.SaveListed)
	h.orphans, h.fresh, h.answered = false, false, saved.summary.Request
	saved.at = t.cfg.Clock.Now()
	h.mu.Lock()
	h.saved = saved
	h.mu.Unlock()
	t.logOf(h).WithFields(logrus.Fields{"checkpoint": m.Path, "bytes": m.Size, "batches": m.Batches, "occasion": why}).
		Debug("checkpoint written")
	if err := checkpoint.Remove(t.cfg.FS, t.cfg.CheckpointDir, dropped); err != nil {
		h.orphans = true
		t.logOf(h).WithError(err).Warn("an old checkpoint's file was not removed yet")
	}
	return nil
}

// result is the label of a save's outcome.
func result(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, checkpoint.ErrNotOwner):
		return "refused"
	}
	return "failed"
}
