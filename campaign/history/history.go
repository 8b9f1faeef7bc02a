package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/internal/store"
)

// history holds each revision of a job's records against the invariants of
// docs/design.md:
//
//   - a chunk is in exactly one place, at every revision (2);
//   - a chunk leaves Complete only together with `state`, which lists its pass (4);
//   - a shard's generation grows by one with each ownership, and never without
//     another owner; an owner's incarnation never comes back (5);
//   - a checkpoint is listed by the owner of that moment, with its generation (6);
//   - a shard is handed over to a pserver that is registered and stays, by one
//     that leaves or holds at least two more (docs/pserver.md, section 5);
//   - passes and the floor only grow, and nothing changes after the end.
//
// It is plain code over what a watch delivers, a revision at a time.
type history struct {
	lanes map[string]etcdqueue.Lane
	sizes func(pass, lane int) (int64, error)
	state etcdqueue.State
	view  membership.View
	past  map[string]bool // incarnations that have owned a shard and were replaced, by shard
	// roster is which pservers are registered, by name.
	roster map[string]membership.Registration
	// saved are the bytes of each shard's newest checkpoint, moved those of the
	// checkpoints with which shards were handed over, by the receiver's ownership.
	saved  map[int]int64
	moved  map[ownership]int64
	claims int // ownerships that were no hand-overs
}

// newHistory is of a job of which the passes have so many chunks, over lanes.
func newHistory(chunks int64, lanes int) *history {
	return &history{
		lanes: map[string]etcdqueue.Lane{}, past: map[string]bool{}, roster: map[string]membership.Registration{},
		saved: map[int]int64{}, moved: map[ownership]int64{},
		sizes: func(_, lane int) (int64, error) { return etcdqueue.LaneSize(chunks, lanes, lane), nil },
	}
}

// see takes all changes of one revision.
func (h *history) see(events []store.Event) error {
	var next etcdqueue.State
	for _, e := range events {
		switch {
		case e.KV.Key == "owners" && !e.Deleted:
			if err := h.owners(e.KV); err != nil {
				return err
			}
		case e.KV.Key == "state" && !e.Deleted:
			var err error
			if next, err = etcdqueue.DecodeState(e.KV); err != nil {
				return err
			}
			if err := h.turned(next); err != nil {
				return err
			}
		}
	}
	for _, e := range events {
		var err error
		switch {
		case strings.HasPrefix(e.KV.Key, "queue/"):
			err = h.lane(e, next)
		case strings.HasPrefix(e.KV.Key, "checkpoints/") && !e.Deleted:
			err = h.listed(e.KV)
		case strings.HasPrefix(e.KV.Key, membership.PServers+"/"):
			err = h.registered(e)
		}
		if err != nil {
			return err
		}
	}
	if next.Phase != "" {
		h.state = next
	}
	return nil
}

func (h *history) turned(next etcdqueue.State) error {
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
	}
	return nil
}

// lane looks at a lane. next is `state` if it was written at the same revision.
func (h *history) lane(e store.Event, next etcdqueue.State) error {
	pass, lane, err := laneOf(e.KV.Key)
	if err != nil {
		return err
	}
	if e.Deleted {
		if pass >= h.state.Floor && (next.Phase == "" || pass >= next.Floor) {
			return fmt.Errorf("lane %s was removed above the floor %d", e.KV.Key, h.state.Floor)
		}
		delete(h.lanes, e.KV.Key)
		return nil
	}
	size, err := h.sizes(pass, lane)
	if err != nil {
		return err
	}
	now, err := etcdqueue.DecodeLane(e.KV, size)
	if err != nil {
		return err
	}
	was := h.lanes[e.KV.Key]
	if gone := was.Complete.Minus(now.Complete); !gone.IsEmpty() && !slices.Contains(next.Reopened, pass) {
		return fmt.Errorf("positions %s of lane %s left Complete, and `state` does not list the pass", gone, e.KV.Key)
	}
	if now.Batches < was.Batches || now.Records < was.Records {
		return fmt.Errorf("the sums of lane %s went back", e.KV.Key)
	}
	h.lanes[e.KV.Key] = now
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

func (h *history) owners(kv store.KV) error {
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

// taken looks at a shard that has got another owner.
func (h *history) taken(shard int, was, now membership.Owner) error {
	giver, receiver := h.roster[was.Name], h.roster[now.Name]
	switch {
	case now.From == "":
		h.claims++
		return nil
	case receiver.Incarnation != now.Incarnation || receiver.Leaving:
		return fmt.Errorf("shard %d was handed over to %s, who is not there or leaving: %+v", shard, now.Name, receiver)
	case giver.Incarnation != was.Incarnation:
		return fmt.Errorf("shard %d was handed over by %s, who is not there: %+v", shard, was.Name, giver)
	case !giver.Leaving && !membership.Uneven(h.view, membership.Roster{Members: h.roster}, was.Name, now.Name):
		return fmt.Errorf("shard %d was handed over by %s to %s, who does not hold less: %+v", shard, was.Name, now.Name, h.view.Shards)
	}
	h.moved[ownership{shard, now.Generation}] = h.saved[shard]
	return nil
}

// registered notes a change of a pserver's registration.
func (h *history) registered(e store.Event) error {
	name := strings.TrimPrefix(e.KV.Key, membership.PServers+"/")
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

func (h *history) listed(kv store.KV) error {
	var m checkpoint.Meta
	if err := json.Unmarshal(kv.Value, &m); err != nil {
		return fmt.Errorf("%s: %w", kv.Key, err)
	}
	if m.Shard >= len(h.view.Shards) || m.Generation != h.view.Shards[m.Shard].Generation {
		return fmt.Errorf("a checkpoint of shard %d was listed with generation %d, the owners say %+v", m.Shard, m.Generation, h.view.Shards)
	}
	h.saved[m.Shard] = m.Size
	return nil
}
