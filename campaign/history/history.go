// Package history holds each revision of a job's records against the invariants of
// docs/design.md:
//
//   - a chunk is in exactly one place, at every revision, and goes only from where to
//     where the design lets it; a later take has a larger token (2);
//   - a chunk becomes Complete out of a take, never by itself (3);
//   - a chunk leaves Complete only together with `state`, which lists its pass; a
//     pass ends, and is taken off that list, when nothing of it is left to do; lanes
//     are removed when every listed checkpoint covers them, and the job is complete
//     when the newest one of every shard, of its present owner, does (4);
//   - a shard's generation grows by one with each ownership, and never without
//     another owner; an owner's incarnation never comes back; who gets a shard is
//     registered, and who loses it without giving it is not any more (5);
//   - a shard is handed over to a pserver that stays, by one that leaves or holds at
//     least two more, as far as requests get through (docs/pserver.md, section 5);
//   - a checkpoint is listed by the owner of that moment, with its generation (6);
//   - passes and the floor only grow, and nothing changes after the end.
//
// It is plain code over what a watch delivers, a revision at a time, and serves
// the campaign and the simulation.
package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/internal/ranges"
	"starfish/internal/store"
)

// History is what the records of a job were so far.
type History struct {
	// Announced: every pserver that leaves gets said that it does, before it hands
	// over. Then who has not said it hands over only for balance.
	Announced bool

	chunks int64
	count  int // of lanes
	lanes  map[string]etcdqueue.Lane
	tokens map[string]int64 // the largest of each lane
	state  etcdqueue.State
	view   membership.View
	past   map[string]bool // incarnations that have owned a shard and were replaced, by shard
	// roster is which pservers are registered, by name; files the listed checkpoints
	// by key.
	roster map[string]membership.Registration
	files  map[string]checkpoint.Meta
	moved  map[Ownership]int64
	claims int
}

// Ownership is one pserver's time with a shard.
type Ownership struct {
	Shard      int
	Generation int64
}

// Chunks is how many a pass has.
func (h *History) Chunks() int { return int(h.chunks) }

// State is the record as it is now.
func (h *History) State() etcdqueue.State { return h.state }

// View is who owns the shards now, and Roster which pservers are registered, by
// name: not to be changed.
func (h *History) View() membership.View { return h.view }

// Roster: see View.
func (h *History) Roster() map[string]membership.Registration { return h.roster }

// Moved are the bytes of the checkpoints with which shards were handed over, by
// the receiver's ownership: not to be changed.
func (h *History) Moved() map[Ownership]int64 { return h.moved }

// Claims counts the ownerships that were no hand-overs.
func (h *History) Claims() int { return h.claims }

// New is the history of a job of which every pass has so many chunks, over lanes.
// It has to see the job from its creation on.
func New(chunks int64, lanes int) *History {
	return &History{
		chunks: chunks, count: lanes, lanes: map[string]etcdqueue.Lane{}, tokens: map[string]int64{},
		past: map[string]bool{}, roster: map[string]membership.Registration{}, files: map[string]checkpoint.Meta{},
		moved: map[Ownership]int64{},
	}
}

// See takes all changes of one revision, with keys relative to the job's, and tells
// what is wrong with them.
func (h *History) See(events []store.Event) error {
	var next etcdqueue.State
	for _, e := range events {
		var err error
		switch name, isPServer := strings.CutPrefix(e.KV.Key, membership.PServers+"/"); {
		case isPServer:
			err = h.register(name, e)
		case e.KV.Key == "state" && !e.Deleted:
			next, err = etcdqueue.DecodeState(e.KV)
		}
		if err != nil {
			return err
		}
	}
	for _, e := range events {
		var err error
		switch {
		case e.KV.Key == "owners" && !e.Deleted:
			err = h.owners(e.KV)
		case strings.HasPrefix(e.KV.Key, "queue/"):
			err = h.lane(e, next)
		}
		if err != nil {
			return err
		}
	}
	for _, e := range events {
		if strings.HasPrefix(e.KV.Key, "checkpoints/") {
			if err := h.listed(e); err != nil {
				return err
			}
		}
	}
	if next.Phase == "" {
		return nil
	}
	if err := h.turned(next); err != nil {
		return err
	}
	h.state = next
	return nil
}

// register notes a change of a pserver's registration.
func (h *History) register(name string, e store.Event) error {
	if e.Deleted {
		delete(h.roster, name)
		return nil
	}
	var r struct {
		Incarnation string
		Leaving     bool
	}
	if err := json.Unmarshal(e.KV.Value, &r); err != nil {
		return fmt.Errorf("%s: %w", e.KV.Key, err)
	}
	h.roster[name] = membership.Registration{Name: name, Incarnation: r.Incarnation, Leaving: r.Leaving}
	return nil
}

func (h *History) turned(next etcdqueue.State) error {
	was := h.state
	switch {
	case was.Phase == "":
		return nil
	case was.Phase.Ended():
		return fmt.Errorf("`state` changed after the end, to %s", next.Phase)
	case next.Pass != was.Pass && next.Pass != was.Pass+1:
		return fmt.Errorf("pass %d came after pass %d", next.Pass, was.Pass)
	case next.Floor < was.Floor:
		return fmt.Errorf("the floor went back from %d to %d", was.Floor, next.Floor)
	case next.Phase == etcdqueue.PhaseDraining && len(next.Reopened) > 0:
		return fmt.Errorf("draining with the passes %v reopened", next.Reopened)
	case next.Phase == etcdqueue.PhaseFailed:
		return nil
	case next.Phase == etcdqueue.PhaseComplete:
		return h.saved(next)
	}
	if next.Floor > was.Floor {
		if err := h.covered(next.Floor); err != nil {
			return err
		}
	}
	if next.Pass > was.Pass || next.Phase == etcdqueue.PhaseDraining && was.Phase != next.Phase {
		if err := h.finished(was.Pass); err != nil {
			return fmt.Errorf("the pass was turned: %w", err)
		}
	}
	for _, pass := range was.Reopened {
		if !slices.Contains(next.Reopened, pass) {
			if err := h.finished(pass); err != nil {
				return fmt.Errorf("the pass is not listed any more: %w", err)
			}
		}
	}
	return nil
}

// finished tells what of a pass is still to be done.
func (h *History) finished(pass int) error {
	for i := range h.count {
		size := etcdqueue.LaneSize(h.chunks, h.count, i)
		key := fmt.Sprintf("queue/%06d/%04d", pass, i)
		if lane, taken := h.lanes[key]; size > 0 && (!taken || !lane.Finished()) {
			return fmt.Errorf("lane %s has chunks that are Todo or Pending", key)
		}
	}
	return nil
}

// covered tells which listed checkpoint does not cover the passes below floor.
func (h *History) covered(floor int) error {
	for shard := range h.view.Shards {
		if _, has := h.newest(shard); !has {
			return fmt.Errorf("the floor went to %d and shard %d has no checkpoint", floor, shard)
		}
	}
	for key, m := range h.files {
		if m.Passes < floor {
			return fmt.Errorf("the floor went to %d and %s covers %d passes", floor, key, m.Passes)
		}
	}
	return nil
}

// Holds is how many shards a pserver holds by a view.
func Holds(v membership.View, p membership.Registration) int {
	return len(membership.Mine(v, p.Incarnation))
}

// saved tells which shard is not saved as a job that is complete needs it.
func (h *History) saved(end etcdqueue.State) error {
	for shard, o := range h.view.Shards {
		if m, has := h.newest(shard); !has || m.Generation != o.Generation || m.Passes <= end.Pass {
			return fmt.Errorf("the job is complete, and the newest checkpoint of shard %d is %+v, of its owner %+v", shard, m, o)
		}
	}
	return nil
}

// newest is the newest listed checkpoint of a shard.
func (h *History) newest(shard int) (m checkpoint.Meta, has bool) {
	for _, key := range slices.Sorted(maps.Keys(h.files)) {
		if h.files[key].Shard == shard {
			m, has = h.files[key], true
		}
	}
	return m, has
}

// lane looks at a lane. next is `state` if it was written at the same revision.
func (h *History) lane(e store.Event, next etcdqueue.State) error {
	pass, lane, err := laneOf(e.KV.Key)
	if err != nil {
		return err
	}
	if e.Deleted {
		if pass >= max(h.state.Floor, next.Floor) {
			return fmt.Errorf("lane %s was removed above the floor %d", e.KV.Key, h.state.Floor)
		}
		delete(h.lanes, e.KV.Key)
		return nil
	}
	if pass < h.state.Floor {
		return fmt.Errorf("lane %s was written below the floor %d", e.KV.Key, h.state.Floor)
	}
	size := etcdqueue.LaneSize(h.chunks, h.count, lane)
	now, err := etcdqueue.DecodeLane(e.KV, size)
	if err != nil {
		return err
	}
	was, known := h.lanes[e.KV.Key]
	if !known {
		was = etcdqueue.NewLane(size)
	}
	if gone := was.Complete.Minus(now.Complete); !gone.IsEmpty() && !slices.Contains(next.Reopened, pass) {
		return fmt.Errorf("positions %s of lane %s left Complete, and `state` does not list the pass", gone, e.KV.Key)
	}
	if now.Batches < was.Batches || now.Records < was.Records {
		return fmt.Errorf("the sums of lane %s went back", e.KV.Key)
	}
	if err := h.went(e.KV.Key, was, now); err != nil {
		return err
	}
	h.lanes[e.KV.Key] = now
	return nil
}

// went tells which chunks of a lane went where they must not.
func (h *History) went(key string, was, now etcdqueue.Lane) error {
	var pending ranges.Set
	for _, e := range was.Pending {
		pending = pending.Union(e.At)
	}
	if at := now.Complete.Minus(was.Complete).Minus(pending); !at.IsEmpty() {
		return fmt.Errorf("positions %s of lane %s became Complete and were not Pending", at, key)
	}
	if at := now.Failed.Minus(was.Failed).Intersect(was.Complete); !at.IsEmpty() {
		return fmt.Errorf("positions %s of lane %s were Complete and are Failed", at, key)
	}
	for _, e := range now.Pending {
		old := slices.IndexFunc(was.Pending, func(o etcdqueue.Entry) bool {
			return o.Incarnation == e.Incarnation && o.Token == e.Token
		})
		switch {
		case old >= 0 && was.Pending[old].At.Covers(e.At):
		case old >= 0:
			return fmt.Errorf("the entry with token %d of lane %s has grown", e.Token, key)
		case e.Token <= h.tokens[key]:
			return fmt.Errorf("a take of lane %s has token %d, an earlier one had %d", key, e.Token, h.tokens[key])
		case !was.Todo.Covers(e.At) && (now.Speculated == was.Speculated || !pending.Covers(e.At)):
			return fmt.Errorf("positions %s of lane %s were taken and not all of them were Todo", e.At, key)
		default:
			h.tokens[key] = e.Token
		}
	}
	return nil
}

func laneOf(key string) (pass, lane int, err error) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 {
		return 0, 0, fmt.Errorf("%q is no lane", key)
	}
	if pass, err = strconv.Atoi(parts[1]); err == nil {
		lane, err = strconv.Atoi(parts[2])
	}
	return pass, lane, err
}

func (h *History) owners(kv store.KV) error {
	next, err := membership.DecodeView(kv)
	if err != nil {
		return err
	}
	for shard, now := range next.Shards {
		var was membership.Owner
		if shard < len(h.view.Shards) {
			was = h.view.Shards[shard]
		}
		id := fmt.Sprintf("%d/%s", shard, now.Incarnation)
		same := now.Incarnation == was.Incarnation
		switch {
		case now.Owned() && !same && now.Generation != was.Generation+1,
			(same || !now.Owned()) && now.Generation != was.Generation:
			return fmt.Errorf("shard %d went from generation %d of %q to %d of %q", shard, was.Generation, was.Incarnation, now.Generation, now.Incarnation)
		case now.Owned() && !same && now.From != "" && (now.From != was.Name || now.HandOvers != was.HandOvers+1):
			return fmt.Errorf("shard %d was handed over by %q, who did not own it: %+v, then %+v", shard, now.From, was, now)
		case now.Owned() && !same && h.past[id]:
			return fmt.Errorf("shard %d is owned by %s again", shard, now.Incarnation)
		case was.Listed && !now.Listed:
			return fmt.Errorf("shard %d has never had a checkpoint, all of a sudden", shard)
		}
		if now.Owned() && !same {
			if err := h.taken(shard, was, now); err != nil {
				return err
			}
		}
		if was.Owned() && !same && now.From == "" { // one that hands over lives, and may get the shard again
			h.past[fmt.Sprintf("%d/%s", shard, was.Incarnation)] = true
		}
	}
	h.view = next
	return nil
}

// taken looks at a shard that has got another owner. Who gives it may have lost its
// registration this moment: until somebody has claimed the shard it is its own.
func (h *History) taken(shard int, was, now membership.Owner) error {
	giver, receiver := h.roster[was.Name], h.roster[now.Name]
	switch {
	case receiver.Incarnation != now.Incarnation:
		return fmt.Errorf("shard %d has the owner %s (%s), who is not registered", shard, now.Name, now.Incarnation)
	case now.From == "" && was.Owned() && giver.Incarnation == was.Incarnation:
		return fmt.Errorf("shard %d was taken by %s from %s (%s), who is registered", shard, now.Name, was.Name, was.Incarnation)
	case now.From == "":
		h.claims++
		return nil
	case receiver.Leaving:
		return fmt.Errorf("shard %d was handed over to %s, who leaves", shard, now.Name)
	case h.Announced && giver.Incarnation == was.Incarnation && !giver.Leaving && Holds(h.view, giver)-Holds(h.view, receiver) < 2:
		return fmt.Errorf("shard %d was handed over by %s to %s, who does not hold less: %+v", shard, was.Name, now.Name, h.view.Shards)
	}
	before, _ := h.newest(shard)
	h.moved[Ownership{shard, now.Generation}] = before.Size
	return nil
}

func (h *History) listed(e store.Event) error {
	if e.Deleted {
		delete(h.files, e.KV.Key)
		return nil
	}
	var m checkpoint.Meta
	if err := json.Unmarshal(e.KV.Value, &m); err != nil {
		return fmt.Errorf("%s: %w", e.KV.Key, err)
	}
	if m.Shard >= len(h.view.Shards) || m.Generation != h.view.Shards[m.Shard].Generation {
		return fmt.Errorf("a checkpoint of shard %d was listed with generation %d, the owners say %+v", m.Shard, m.Generation, h.view.Shards)
	}
	h.files[e.KV.Key] = m
	return nil
}
