package pserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"starfish/checkpoint"
	"starfish/internal/membership"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver/ledger"
	"starfish/pserver/pb"
)

// declinedTime is how long a shard must have been free, although it was planned to
// be claimed, until the pservers with a memory limit are left out of the plan:
// they cannot hold it.
const declinedTime = 3 * time.Second

// errFull: the receiver of a hand-over has no room for the shard.
var errFull = errors.New("pserver: the receiver has no memory for the shard")

// claimants is the roster for a plan of claims: when a shard has been free for
// too long, without the others that have a memory limit.
func (t *tenure) claimants(v membership.View) membership.Roster {
	now := t.cfg.Clock.Now()
	free := false
	for _, o := range v.Shards {
		free = free || !o.Owned() || t.roster.Members[o.Name].Incarnation != o.Incarnation
	}
	if !free {
		t.free = time.Time{}
	} else if t.free.IsZero() {
		t.free = now
	}
	if !free || now.Sub(t.free) < declinedTime {
		return t.roster
	}
	r := membership.Roster{Revision: t.roster.Revision, Members: maps.Clone(t.roster.Members)}
	for name, m := range r.Members {
		if m.MaxMemory > 0 && m.Incarnation != t.me.Incarnation {
			m.Leaving = true // it keeps what it holds and gets nothing
			r.Members[name] = m
		}
	}
	return r
}

// affordable are those of the shards for which there is room, by what is known of
// their size. The others are named in the log and in what the process waits for.
func (t *tenure) affordable(ctx context.Context, shards []int) ([]int, error) {
	t.declined = ""
	if t.memory.limit == 0 {
		return shards, nil
	}
	room := t.memory.room()
	for _, h := range *t.table.Load() {
		if h != nil && !h.loaded.Load() {
			room -= t.needs[h.shard]
		}
	}
	var can []int
	for _, shard := range shards {
		if (*t.table.Load())[shard] != nil { // it is in memory still
			can = append(can, shard)
			continue
		}
		need, err := t.need(ctx, shard)
		if err != nil {
			return nil, err
		}
		if need > room {
			t.declined = cmp.Or(t.declined, fmt.Sprintf("for memory: shard %d takes %s, and %s of %s are left",
				shard, job.Bytes(need).Short(), job.Bytes(max(room, 0)).Short(), job.Bytes(t.memory.limit).Short()))
			continue
		}
		room -= need
		t.needs[shard] = need
		can = append(can, shard)
	}
	if t.declined != "" && t.declining.Due(t.cfg.Clock.Now()) {
		t.log.WithField("reason", t.declined).Warn("a shard is not claimed, this pserver cannot hold it")
	}
	return can, nil
}

// need is what a shard will take in memory: what its newest checkpoint says, or its
// file's size, and no less than what a new shard takes.
func (t *tenure) need(ctx context.Context, shard int) (int64, error) {
	metas, _, err := checkpoint.List(ctx, t.cfg.Store, shard)
	if err != nil {
		return 0, err
	}
	least, err := MemoryOf(t.job.Parameters, shard, t.memory.limit)
	if err != nil || len(metas) == 0 {
		return least, err
	}
	var s ledger.Summary
	if err := json.Unmarshal(metas[0].Ledger, &s); err != nil {
		return max(least, metas[0].Size), nil //nolint:nilerr // the load will say so
	}
	return max(least, cmp.Or(s.Memory, metas[0].Size)), nil
}

// roomAt asks a pserver with a memory limit how much of it is left, in bytes.
func (t *tenure) roomAt(ctx context.Context, p membership.Registration) (int64, error) {
	cc, err := transport.NewClient(t.cfg.Network, p.Address)
	if err != nil {
		return 0, err
	}
	defer func() { _ = cc.Close() }()
	r, err := pb.NewPServerClient(cc).Stats(ctx, &pb.StatsRequest{})
	if err != nil {
		return 0, err
	}
	room := p.MaxMemory
	for _, s := range r.Shards {
		room -= s.Bytes
	}
	return room, nil
}

// fits is an error if the receiver of a hand-over has a memory limit and no room for
// so many bytes.
func (t *tenure) fits(ctx context.Context, to membership.Registration, bytes int64) error {
	if to.MaxMemory == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	room, err := t.roomAt(ctx, to)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", errSilent, to.Name, err)
	}
	if bytes > room {
		return fmt.Errorf("%w: %s has %s of %s left, the shard takes %s", errFull, to.Name,
			job.Bytes(max(room, 0)).Short(), job.Bytes(to.MaxMemory).Short(), job.Bytes(bytes).Short())
	}
	return nil
}

// able leaves out those of the pservers that have answered which have no room for
// their fair part of what is here, or for the largest shard.
func (t *tenure) able(ctx context.Context, willing map[string]bool) map[string]bool {
	var all, largest int64
	for _, h := range *t.table.Load() {
		if h != nil && h.loaded.Load() {
			bytes := h.core.Content()
			all, largest = all+bytes, max(largest, bytes)
		}
	}
	n := int64(0)
	for _, answers := range willing {
		if answers {
			n++
		}
	}
	for name, answers := range willing {
		if !answers {
			continue
		}
		if err := t.fits(ctx, t.roster.Members[name], max(largest, all/n)); err != nil {
			t.log.WithError(err).Warn("a pserver is given no shard")
			willing[name] = false
		}
	}
	return willing
}
